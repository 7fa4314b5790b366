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

// The labels of a goroutine that name its span, in hexadecimal digits.
var (
	traceIDLabel = libpf.Intern("trace_id")
	spanIDLabel  = libpf.Intern("span_id")
)

// linker hands samples on to the eBPF profiler's reporter, with links. The reporter's
// identity of a sample includes its link, so that samples in different spans stay apart.
type linker struct {
	reporter.Reporter

	links     bool
	contexts  *contexts // nil if they are not wanted
	telemetry *telemetry
}

// ReportTraceEvent implements [reporter.TraceReporter]. It changes both arguments: upstream
// makes them for each sample.
func (l *linker) ReportTraceEvent(trace *libpf.Trace, meta *samples.TraceEventMeta) error {
	l.contexts.sampled(int(meta.PID))
	if l.links {
		linked := link(trace.CustomLabels, meta)
		l.telemetry.sample(linked)
	}
	return l.Reporter.ReportTraceEvent(trace, meta)
}

// link moves the ids of a span from the labels to meta, and reports whether there were
// two valid ones. Else it changes nothing.
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

// decodeID decodes an id, and reports whether it is a valid one: not zero, and of the
// right length.
func decodeID(id []byte, text string) bool {
	if len(text) != hex.EncodedLen(len(id)) {
		return false
	}
	_, err := hex.Decode(id, []byte(text))
	return err == nil && slices.ContainsFunc(id, func(b byte) bool { return b != 0 })
}

// byLabels makes the labels of a sample a part of its identity. The reporter gives a
// merged sample the labels of its first one.
type byLabels struct{}

// CollectExtraSampleMeta implements [samples.SampleAttrProducer]. It returns equal strings
// for equal labels and no others, and nil for none.
func (byLabels) CollectExtraSampleMeta(trace *libpf.Trace, _ *samples.TraceEventMeta) any {
	if len(trace.CustomLabels) == 0 {
		return nil
	}
	// Labels come from C strings: there is no zero byte in them.
	all := make([]string, 0, len(trace.CustomLabels))
	for key, value := range trace.CustomLabels {
		all = append(all, key.String()+"\x00"+value.String())
	}
	slices.Sort(all)
	return strings.Join(all, "\x00")
}

// ExtraSampleAttrs implements [samples.SampleAttrProducer]: the reporter makes the
// attributes of labels itself.
func (byLabels) ExtraSampleAttrs(*samples.AttrTableManager, any) []int32 { return nil }
