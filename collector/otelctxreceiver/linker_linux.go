// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build amd64 || arm64

package otelctxreceiver

import (
	"encoding/hex"
	"slices"
	"strings"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/reporter"
	"go.opentelemetry.io/ebpf-profiler/reporter/samples"
)

// These goroutine labels identify the goroutine's span by hexadecimal ids.
var (
	traceIDLabel = libpf.Intern("trace_id")
	spanIDLabel  = libpf.Intern("span_id")
)

// linker adds links to samples before it passes them to the eBPF profiler's reporter. The reporter
// never merges samples with different links, so samples of different spans stay separate.
type linker struct {
	reporter.Reporter

	links     bool
	contexts  *contexts // nil if disabled
	telemetry *telemetry
}

// ReportTraceEvent implements [reporter.TraceReporter]. It may modify both arguments, because
// upstream allocates them for each sample.
func (l *linker) ReportTraceEvent(trace *libpf.Trace, meta *samples.TraceEventMeta) error {
	l.contexts.sampled(int(meta.PID))
	if l.links {
		linked := link(trace.CustomLabels, meta)
		l.telemetry.sample(linked)
	}
	return l.Reporter.ReportTraceEvent(trace, meta)
}

// link moves the span's ids from the labels to meta and returns true. If either id is missing or
// invalid, it changes nothing and returns false.
func link(labels map[libpf.String]libpf.String, meta *samples.TraceEventMeta) bool {
	var (
		traceID libpf.APMTraceID
		spanID  libpf.APMSpanID
	)
	if !decodeID(traceID[:], labels[traceIDLabel].String()) || !decodeID(spanID[:], labels[spanIDLabel].String()) {
		return false
	}
	meta.TraceID, meta.SpanID = traceID, spanID
	delete(labels, traceIDLabel)
	delete(labels, spanIDLabel)
	return true
}

// decodeID decodes a hexadecimal id and reports whether it is valid: it must fill id exactly and
// not be zero.
func decodeID(id []byte, text string) bool {
	if len(text) != hex.EncodedLen(len(id)) {
		return false
	}
	_, err := hex.Decode(id, []byte(text))
	return err == nil && slices.ContainsFunc(id, func(b byte) bool { return b != 0 })
}

// byLabels prevents the reporter from merging samples with different labels. Otherwise all merged
// samples would get the labels of the first one.
type byLabels struct{}

// CollectExtraSampleMeta implements [samples.SampleAttrProducer]. The reporter merges only samples
// for which it returns the same value. It returns a string that is unique to the labels, or nil if
// there are none.
func (byLabels) CollectExtraSampleMeta(trace *libpf.Trace, _ *samples.TraceEventMeta) any {
	if len(trace.CustomLabels) == 0 {
		return nil
	}
	// A zero byte is a safe separator, because labels come from C strings, which cannot contain
	// one.
	all := make([]string, 0, len(trace.CustomLabels))
	for key, value := range trace.CustomLabels {
		all = append(all, key.String()+"\x00"+value.String())
	}
	slices.Sort(all)
	return strings.Join(all, "\x00")
}

// ExtraSampleAttrs implements [samples.SampleAttrProducer]. It returns no attributes, because the
// reporter itself adds the labels as attributes.
func (byLabels) ExtraSampleAttrs(*samples.AttrTableManager, any) []int32 { return nil }
