// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// hexFields lists the fields that are encoded in hexadecimal. All other bytes fields are encoded in base64.
var hexFields = map[protoreflect.Name]bool{"trace_id": true, "span_id": true, "profile_id": true}

// jsonWriter writes messages in OTLP's JSON encoding. This is protobuf's JSON encoding, except that trace,
// span and profile ids are hexadecimal and enums are numbers. Equal messages have equal encodings.
// jsonWriter writes value by value. Package protojson would build the text of the whole message in memory,
// where it takes several times the size of the message. The methods ignore write errors, which failure and
// Flush return.
type jsonWriter struct{ *bufio.Writer }

// failure returns the first write error so far. It does not flush the buffer.
func (w jsonWriter) failure() error {
	_, err := w.Write(nil)
	return err
}

func (w jsonWriter) text(s string) { _, _ = w.WriteString(s) }

// message writes the fields that are set in m, sorted by name.
func (w jsonWriter) message(m proto.Message) { w.object(m.ProtoReflect()) }

func (w jsonWriter) object(m protoreflect.Message) {
	var fields []protoreflect.FieldDescriptor
	for f := range m.Range {
		fields = append(fields, f)
	}
	slices.SortFunc(fields, func(a, b protoreflect.FieldDescriptor) int { return cmp.Compare(a.JSONName(), b.JSONName()) })
	separator := "{"
	for _, f := range fields {
		w.text(separator + `"` + f.JSONName() + `":`)
		separator = ","
		if f.IsList() {
			w.text("[")
			w.elements(f, m.Get(f).List(), false)
			w.text("]")
		} else {
			w.value(f, m.Get(f))
		}
	}
	if len(fields) == 0 {
		w.text("{")
	}
	w.text("}")
}

// elements writes the elements of a list, separated by commas. If others is set, it also writes a comma
// before the first, because other elements precede it.
func (w jsonWriter) elements(f protoreflect.FieldDescriptor, all protoreflect.List, others bool) {
	for i := range all.Len() {
		if others || i > 0 {
			w.text(",")
		}
		w.value(f, all.Get(i))
	}
}

func (w jsonWriter) value(f protoreflect.FieldDescriptor, v protoreflect.Value) {
	if f.Message() != nil {
		w.object(v.Message())
		return
	}
	b, err := json.Marshal(jsonValue(f, v.Interface()))
	if err != nil {
		panic("export: a value that JSON has: " + err.Error())
	}
	_, _ = w.Write(b)
}

// jsonValue converts v, the value of field f, so that encoding/json encodes it as protobuf's JSON encoding
// requires.
func jsonValue(f protoreflect.FieldDescriptor, v any) any {
	switch n := v.(type) {
	case int64, uint64:
		return fmt.Sprint(n) // In a JSON number, many readers would lose precision.
	case []byte:
		if hexFields[f.Name()] {
			return hex.EncodeToString(n)
		}
		return base64.StdEncoding.EncodeToString(n) // nil bytes become "", not null
	case float64:
		return JSONDouble(n)
	}
	return v
}

// JSONDouble returns f, or its name in protobuf's JSON encoding if JSON has no such number.
func JSONDouble(f float64) any {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	default:
		return f
	}
}
