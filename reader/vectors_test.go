// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"encoding/binary"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/internal/wire"
)

// TestGoldenVectors checks that the reader treats the headers, payloads and records in
// internal/interop/vectors as the files say.
func TestGoldenVectors(t *testing.T) {
	for file, judge := range map[string]func([]byte) (verdict, expect string){
		"headers.csv": checkHeader, "payloads.csv": checkPayload, "records.csv": checkRecord,
	} {
		f, err := os.Open("../internal/interop/vectors/" + file)
		if errors.Is(err, os.ErrNotExist) {
			t.Skip("needs a clone of the repository: ", err)
		}
		require.NoError(t, err)
		rows, err := csv.NewReader(f).ReadAll()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.Greater(t, len(rows), 10, file)
		for _, row := range rows[1:] {
			b, err := hex.DecodeString(row[1])
			require.NoError(t, err)
			verdict, expect := judge(b)
			assert.Equal(t, row[2], verdict, "%s: %s", file, row[0])
			assert.Equal(t, row[3], expect, "%s: %s", file, row[0])
		}
	}
}

func checkHeader(b []byte) (verdict, expect string) {
	h, err := wire.DecodeProcessContextHeader((*[wire.ProcessContextHeaderSize]byte)(b))
	switch {
	case errors.Is(err, wire.ErrProcessContextUnsigned), err == nil && h.PublishedAtNS == 0:
		return "retry", ""
	case err != nil:
		return "skip", ""
	case h.ValidatePayload() != nil:
		return "reject", ""
	}
	return "accept", fmt.Sprintf("payload of %d bytes at %#x", h.PayloadSize, h.Payload)
}

func checkPayload(b []byte) (verdict, expect string) {
	message, err := decodePayload(b)
	if err != nil {
		return "reject", ""
	}
	var out []string
	for _, kv := range append(message.GetResource().GetAttributes(), message.GetAttributes()...) {
		out = append(out, kv.GetKey()+"="+valueText(kv.GetValue()))
	}
	return "accept", strings.Join(out, " ")
}

func valueText(v *commonpb.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_IntValue:
		return strconv.FormatInt(v.IntValue, 10)
	case *commonpb.AnyValue_ArrayValue:
		var out []string
		for _, e := range v.ArrayValue.GetValues() {
			out = append(out, valueText(e))
		}
		return "[" + strings.Join(out, " ") + "]"
	default:
		return ""
	}
}

func checkRecord(b []byte) (verdict, expect string) {
	// Like a reader, use only as many bytes as the size field of the record says.
	b = b[:wire.ThreadContextRecordSize+int(binary.LittleEndian.Uint16(b[26:]))]
	s := spanOfRecord(b, []string{"http_route", "http_method", "user_id"})
	if s == nil {
		return "none", ""
	}
	out := []string{fmt.Sprintf("trace_id=%x span_id=%x trace_flags=%d", s.TraceID, s.SpanID, s.TraceFlags)}
	for _, a := range s.Attributes {
		out = append(out, a.Key+"="+a.Value)
	}
	return "accept", strings.Join(out, " ")
}
