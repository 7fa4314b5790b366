// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package reader

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	processcontextpb "go.opentelemetry.io/proto/otlp/processcontext/v1development"
)

// publishedAt describes a publication of a fake process.
type publishedAt struct {
	// name is the name of the mapping in /proc/pid/maps.
	name string
	// schema is the advertised schema. If it is empty, nothing is advertised.
	schema string
	// change, if not nil, changes the memory of the process. It gets the addresses of the header
	// and the payload.
	change func(f *fakeTarget, header, payload uint64)
}

const (
	contextName   = "/memfd:OTEL_CTX (deleted)"
	separateName  = "[anon_shmem:OTELCTX_THREADLOCAL]"
	separateMemfd = "/memfd:OTELCTX_THREADLOCAL (deleted)"
)

// newPublished returns a process with these publications, at increasing addresses.
func newPublished(t *testing.T, all ...publishedAt) *fakeTarget {
	t.Helper()
	f := &fakeTarget{memory: map[uint64][]byte{}}
	lines := []string{otherMapping}
	for i, p := range all {
		msg := &processcontextpb.ProcessContext{Attributes: []*commonpb.KeyValue{keyValue("a", str("b"))}}
		if p.schema != "" {
			msg.Attributes = append(msg.Attributes, keyValue("threadlocal.schema_version", str(p.schema)))
		}
		header, payload := uint64(0x1000+0x10000*i), uint64(0xC00000+0x10000*i)
		f.memory[payload] = marshal(t, msg)
		f.memory[header] = encodeHeader(uint64(1000+i), len(f.memory[payload]), payload)
		if p.change != nil {
			p.change(f, header, payload)
		}
		lines = append(lines, fmt.Sprintf("%08x-%08x rw-p 00000000 00:01 1030      %s\n", header, header+0x1000, p.name))
	}
	f.setMaps(strings.Join(lines, ""))
	return f
}

func TestPublished(t *testing.T) {
	changing := func(f *fakeTarget, header, _ uint64) { f.header(header).PublishedAtNS = 0 }
	unsigned := func(f *fakeTarget, header, _ uint64) { f.header(header).Signature = [8]byte{} }
	otherVersion := func(f *fakeTarget, header, _ uint64) { f.header(header).Version = 1 }
	noMessage := func(f *fakeTarget, _, payload uint64) { f.memory[payload][0] = 0xff }
	type all []publishedAt
	foreign, ours := publishedAt{contextName, "", nil}, publishedAt{contextName, "of ours", nil}
	separate := publishedAt{separateName, "separate", nil}
	for name, test := range map[string]struct {
		all all
		// context says whether published must return a process context. If not, contextErr is the
		// expected reason. err is the expected error of the call, and schema is the schema that
		// must be advertised, or "" if there must be no advertisement.
		context         bool
		contextErr, err error
		schema          string
	}{
		"nothing":                              {nil, false, ErrNoContext, nil, ""},
		"a context":                            {all{ours}, true, nil, nil, "of ours"},
		"a context without spans":              {all{foreign}, true, nil, nil, ""},
		"spans only":                           {all{separate}, false, ErrNoContext, nil, "separate"},
		"another context, then spans":          {all{foreign, separate}, true, nil, nil, "separate"},
		"spans, then another context":          {all{separate, foreign}, true, nil, nil, "separate"},
		"a memfd without a name":               {all{foreign, {separateMemfd, "separate", nil}}, true, nil, nil, "separate"},
		"two contexts, one with spans":         {all{foreign, ours}, false, ErrInvalid, nil, "of ours"},
		"two contexts, and spans":              {all{foreign, foreign, separate}, false, ErrInvalid, nil, "separate"},
		"two contexts without spans":           {all{foreign, foreign}, false, ErrInvalid, ErrInvalid, ""},
		"two contexts, both with spans":        {all{ours, ours}, false, ErrInvalid, ErrInvalid, ""},
		"a context takes precedence":           {all{separate, ours}, true, nil, nil, "of ours"},
		"one of two contexts takes precedence": {all{separate, foreign, ours}, false, ErrInvalid, nil, "of ours"},
		"two that are not contexts":            {all{separate, separate, foreign}, true, nil, ErrInvalid, ""},
		"not a context, without spans":         {all{{separateName, "", nil}, foreign}, true, nil, nil, ""},
		"not a context, of another version":    {all{{separateName, "separate", otherVersion}, foreign}, true, nil, nil, ""},
		"not a context, without a message":     {all{{separateName, "separate", noMessage}, foreign}, true, nil, nil, ""},
		"not a context, being updated":         {all{{separateName, "separate", changing}, foreign}, true, nil, ErrBusy, ""},
		"not a context, being published":       {all{{separateName, "separate", unsigned}}, false, ErrNoContext, ErrBusy, ""},
		"a context that is being updated":      {all{separate, {contextName, "", changing}}, false, ErrBusy, ErrBusy, ""},
		"a context of another version":         {all{separate, {contextName, "", otherVersion}}, false, ErrInvalid, ErrInvalid, ""},
		"a name with a context's prefix":       {all{{"[anon:OTELCTX_THREADLOCAL2]", "separate", nil}}, false, ErrNoContext, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pc, advertisement, contextErr, err := newPublished(t, test.all...).process().published(t.Context())
			assert.Equal(t, test.context, pc != nil)
			require.ErrorIs(t, contextErr, test.contextErr)
			if test.err != nil {
				assertKind(t, test.err, err, fakePID)
				return
			}
			require.NoError(t, err)
			if test.schema == "" {
				assert.Nil(t, advertisement)
				return
			}
			schema, err := newAdvertisement(advertisement).text("threadlocal.schema_version")
			require.NoError(t, err)
			assert.Equal(t, test.schema, schema)
		})
	}
}

// TestPublishedIsRemembered checks that the reader remembers an advertisement, and searches for
// another once the remembered one no longer advertises spans.
func TestPublishedIsRemembered(t *testing.T) {
	f := newPublished(t, publishedAt{contextName, "", nil}, publishedAt{contextName, "of ours", nil})
	p := f.process()
	_, advertisement, _, err := p.published(t.Context())
	require.NoError(t, err)
	require.NotNil(t, advertisement)
	_, again, _, err := p.published(t.Context())
	require.NoError(t, err)
	assert.Equal(t, advertisement, again)
	changed, err := p.changed(advertisementPublication, advertisement.PublishedAtNS)
	require.NoError(t, err)
	assert.False(t, changed)

	other := newPublished(t, publishedAt{contextName, "", nil}, publishedAt{contextName, "", nil}, publishedAt{separateName, "separate", nil})
	f.memory, f.maps = other.memory, other.maps
	_, advertisement, _, err = p.published(t.Context())
	require.NoError(t, err)
	schema, err := newAdvertisement(advertisement).text("threadlocal.schema_version")
	require.NoError(t, err)
	assert.Equal(t, "separate", schema)
}
