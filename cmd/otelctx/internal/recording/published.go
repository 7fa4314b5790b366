// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/reader"
)

// published is what is known of a process by what it publishes, and by the kernel. It
// does not change, but for names.
type published struct {
	// layout is nil if what the process publishes cannot be read.
	layout *reader.ThreadLayout
	// names is the last layout that was looked at for the names of attributes; nil for
	// layout.
	names    atomic.Pointer[reader.ThreadLayout]
	resource profile.Resource
	// dropped is how many attributes were left out, since profiles cannot have them, until
	// they are counted.
	dropped int
	// service is what people call it.
	service string
}

// newPublished returns what is known of a process. layout may be nil.
func newPublished(pid int, layout *reader.ThreadLayout) *published {
	p := &published{layout: layout}
	var (
		attributes []*commonpb.KeyValue
		schemaURL  string
	)
	if layout != nil && layout.Context != nil {
		attributes = layout.Context.Message.GetResource().GetAttributes()
		schemaURL = layout.Context.SchemaURL()
	}
	// What the process says of itself holds, so that the resource is that of its spans.
	for _, kv := range processAttributes(pid) {
		if !slices.ContainsFunc(attributes, func(a *commonpb.KeyValue) bool { return a.GetKey() == kv.GetKey() }) {
			attributes = append(slices.Clip(attributes), kv)
		}
	}
	for _, kv := range attributes {
		switch text := kv.GetValue().GetStringValue(); {
		case kv.GetKey() == string(semconv.ServiceNameKey) && text != "":
			p.service = text
		case kv.GetKey() == string(semconv.ProcessExecutableNameKey) && p.service == "":
			p.service = text
		}
	}
	p.resource, p.dropped = profile.NewResource(attributes, schemaURL)
	return p
}

// processAttributes returns what the kernel says of a process.
func processAttributes(pid int) []*commonpb.KeyValue {
	kvs := []*commonpb.KeyValue{profile.IntAttribute(string(semconv.ProcessPIDKey), int64(pid))}
	// Kernel threads have none.
	if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		exe = strings.TrimSuffix(exe, " (deleted)")
		kvs = append(kvs,
			profile.StringAttribute(string(semconv.ProcessExecutablePathKey), exe),
			profile.StringAttribute(string(semconv.ProcessExecutableNameKey), filepath.Base(exe)))
	}
	return kvs
}

// unprovenKey is the attribute, true, of samples whose span may be another one than the
// thread was in.
const unprovenKey = "otelctx.span.unproven"

// localRootKey is the attribute that has the id of a span's local root, in lower-case
// hexadecimal.
const localRootKey = "otelctx.local_root_span_id"

// sampleAttributes returns what samples say beside their stack and their span, whose
// attributes are shown.
func sampleAttributes(s *rawKey, shown []reader.ThreadAttribute) []*commonpb.KeyValue {
	var kvs []*commonpb.KeyValue
	// First, for the last of equal keys counts: what the process shows does not stand for
	// what was seen.
	for _, a := range shown {
		kvs = append(kvs, profile.StringAttribute(a.Key, a.Value))
	}
	kvs = append(kvs,
		profile.IntAttribute(string(semconv.ThreadIDKey), int64(s.tid)),
		profile.StringAttribute(string(semconv.ThreadNameKey), s.comm),
	)
	if !s.span.exists() {
		return kvs
	}
	if s.span.localRoot != [8]byte{} {
		kvs = append(kvs, profile.StringAttribute(localRootKey, fmt.Sprintf("%x", s.span.localRoot)))
	}
	if !s.span.proven {
		kvs = append(kvs, &commonpb.KeyValue{Key: unprovenKey, Value: &commonpb.AnyValue{
			Value: &commonpb.AnyValue_BoolValue{BoolValue: true},
		}})
	}
	return kvs
}
