// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package environment reads the environment variables that configure otelctx. It contains their
// names and descriptions, and parses their values. The table in docs/no-code.md is generated from
// [All].
//
// An invalid value is ignored, and reported to [otel.Handle] only once per process, even if several
// providers read it.
//
// The package only parses values; its callers act on them.
package environment

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.opentelemetry.io/otel"

	"github.com/otelctx/otelctx/internal/vma"
)

// Variable is an environment variable.
type Variable struct {
	Name string
	// Values describes the valid values. Default describes the value that applies if the variable
	// is not set.
	Values, Default string
	// Does describes the effect of the variable.
	Does string
	// Option names the option in code that overrides the variable.
	Option string
}

const (
	booleans = "true, false"
	yes      = "true"
	no       = "false"
	none     = "none"
)

// The variables.
var (
	ProcessContextDisabled = Variable{
		Name: "OTELCTX_PROCESS_CONTEXT_DISABLED", Values: booleans, Default: no,
		Does:   "true publishes no resource",
		Option: "resourcepublisher.WithEnabled",
	}
	ProcessContextHiddenKeys = Variable{
		Name: "OTELCTX_PROCESS_CONTEXT_HIDDEN_KEYS", Values: "attribute keys", Default: none,
		Does:   "attributes of the resource that are not published, such as process.command_args",
		Option: "resourcepublisher.WithAttributeFilter",
	}
	SpansDisabled = Variable{
		Name: "OTELCTX_SPANS_DISABLED", Values: booleans, Default: no,
		Does:   "true publishes no spans",
		Option: "spanctx.WithEnabled",
	}
	SpanThreadSlots = Variable{
		Name: "OTELCTX_SPAN_THREAD_SLOTS", Values: booleans, Default: yes,
		Does:   "false publishes no spans for readers that know only thread ids",
		Option: "spanctx.WithThreadSlots",
	}
	SpanNames = Variable{
		Name: "OTELCTX_SPAN_NAMES", Values: booleans, Default: yes,
		Does:   "false publishes spans without their names and those of their requests",
		Option: "spanctx.WithSpanNames",
	}
	SpanAttributeKeys = Variable{
		Name: "OTELCTX_SPAN_ATTRIBUTE_KEYS", Values: "attribute keys", Default: none,
		Does:   "context-scoped attributes that are published with spans",
		Option: "spanctx.WithAttributeKeys, which adds to them",
	}
	SpanSlotAttributeSpace = Variable{
		Name: "OTELCTX_SPAN_SLOT_ATTRIBUTE_SPACE", Values: "0 to 612", Default: "192 with attribute keys, else 0",
		Does:   "bytes for attributes in each slot",
		Option: "spanctx.WithSlotAttributeSpace",
	}
	SpanLabels = Variable{
		Name: "OTELCTX_SPAN_LABELS", Values: "auto, kept, off", Default: "auto",
		Does:   "what readers of profiler labels see of spans",
		Option: "spanctx.WithLabels",
	}
	SpanSlotCapacity = Variable{
		Name: "OTELCTX_SPAN_SLOT_CAPACITY", Values: "a power of two up to 16777216", Default: "65536",
		Does:   "thread slots",
		Option: "spanctx.WithSlotCapacity",
	}
	SpanSlotLayout = Variable{
		Name: "OTELCTX_SPAN_SLOT_LAYOUT", Values: "1, 2", Default: "2",
		Does:   "1 gives thread slots the layout of Datadog's first OTEL context storage",
		Option: "spanctx.WithDatadogLayout, which chooses 1",
	}
	SpanDatadogLabels = Variable{
		Name: "OTELCTX_SPAN_DATADOG_LABELS", Values: booleans, Default: no,
		Does:   "true adds the profiler labels of dd-trace-go",
		Option: "spanctx.WithDatadogLabels",
	}
	SpanPyroscopeProfileIDs = Variable{
		Name: "OTELCTX_SPAN_PYROSCOPE_PROFILE_IDS", Values: booleans, Default: no,
		Does:   "true sets the span attribute by which Grafana finds a span's profile in Pyroscope",
		Option: "spanctx.WithPyroscopeProfileIDs",
	}
	// MemfdDisabled is read by package vma, which does not link OpenTelemetry.
	MemfdDisabled = Variable{
		Name: vma.MemfdVariable, Values: booleans, Default: no,
		Does:   "true publishes without memfd_create, in anonymous memory that prctl names; needs a kernel with CONFIG_ANON_VMA_NAME",
		Option: "nothing",
	}
	AllocationSampling = Variable{
		Name: "OTELCTX_ALLOCATION_SAMPLING", Values: booleans, Default: no,
		Does:   "true makes services that are instrumented without code sample allocations, for otelctx record --alloc",
		Option: "nothing: importing spanctx/allocs needs no variable",
	}
	UniversalProfiling = Variable{
		Name: "OTELCTX_UNIVERSAL_PROFILING", Values: booleans, Default: no,
		Does:   "true adds Elastic's integration to services that are instrumented without code; its own variables count too",
		Option: "nothing: universalprofiling.WithIntegration needs no variable",
	}
)

// All returns the variables in the order in which the documentation lists them.
func All() []Variable {
	return []Variable{
		ProcessContextDisabled, ProcessContextHiddenKeys,
		SpansDisabled, SpanThreadSlots, SpanNames, SpanAttributeKeys, SpanSlotAttributeSpace, SpanLabels, SpanSlotCapacity, SpanSlotLayout, SpanDatadogLabels, SpanPyroscopeProfileIDs,
		MemfdDisabled, AllocationSampling, UniversalProfiling,
	}
}

// text returns the variable's value without surrounding spaces, or "" if the variable is not set.
func (v Variable) text() string { return strings.TrimSpace(os.Getenv(v.Name)) }

// Bool returns the value of v, or its default if v is not set. An invalid value is reported and counts as
// not set.
func (v Variable) Bool() bool {
	text := v.text()
	if text == "" {
		return v.Default == yes
	}
	is, err := strconv.ParseBool(strings.ToLower(text))
	if err != nil {
		v.invalid(text)
		return v.Default == yes
	}
	return is
}

// Int returns the value of v as a number. ok is false if v is not set, or if its value is not a
// number that valid accepts.
func (v Variable) Int(valid func(int) bool) (n int, ok bool) {
	text := v.text()
	if text == "" {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	if err != nil || !valid(n) {
		v.invalid(text)
		return 0, false
	}
	return n, true
}

// Choice looks up the value of v in names and returns its index. ok is false if v is not set or
// invalid.
func (v Variable) Choice(names ...string) (index int, ok bool) {
	text := v.text()
	if text == "" {
		return 0, false
	}
	if index = slices.Index(names, text); index < 0 {
		v.invalid(text)
		return 0, false
	}
	return index, true
}

// List splits the value of v at commas, and returns the parts without surrounding spaces. It omits
// empty parts.
func (v Variable) List() (list []string) {
	for part := range strings.SplitSeq(v.text(), ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

// Unknown reports that a list contains an invalid member.
func (v Variable) Unknown(member string) {
	report(fmt.Errorf("%s: %q is none of %s", v.Name, member, v.Values))
}

// invalid reports that the value of v is invalid.
func (v Variable) invalid(text string) {
	report(fmt.Errorf("%s=%q is not valid: want %s; taken as not set", v.Name, text, v.Values))
}

// reported contains the texts of the errors reported so far.
var reported sync.Map

// report sends an error to [otel.Handle] once per process.
func report(err error) {
	if _, again := reported.LoadOrStore(err.Error(), true); !again {
		otel.Handle(err)
	}
}

// Forget forgets which errors have been reported, so that they are reported again. It is for tests.
func Forget() { reported.Clear() }
