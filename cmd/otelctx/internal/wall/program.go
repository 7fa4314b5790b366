// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package wall

import (
	"encoding/binary"
	"slices"
	"strings"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/symbols"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/waiting"
	"github.com/otelctx/otelctx/reader"
)

// program is a program that a target runs.
type program struct {
	*waiting.Program

	resource profile.Resource
	// attributes are those of resource, for the filters.
	attributes []*commonpb.KeyValue
	service    string
	// described, tops and key are used only by the method snapshot.
	described map[string]*stack
	tops      map[string]*symbols.Location
	key       []byte // scratch space
}

func newProgram(p *waiting.Program) *program {
	n := &program{Program: p, service: p.Service(), described: map[string]*stack{}, tops: map[string]*symbols.Location{}}
	attributes := p.Attributes
	if n.service == "" {
		n.service = "unknown_service"
		attributes = append(slices.Clip(attributes), profile.StringAttribute(string(semconv.ServiceNameKey), n.service))
	}
	n.attributes = attributes
	n.resource, _ = profile.NewResource(attributes, p.SchemaURL)
	return n
}

// stack describes goroutines with equal stacks.
type stack struct {
	state          reader.GoroutineState
	kind, function string
	// locations is the symbolized stack. A single frame with the state or the kind of wait replaces the
	// innermost runtime functions.
	locations []*symbols.Location
}

// maxStacks bounds the cached stacks of a process.
const maxStacks = 1 << 14

// describe returns the description of a goroutine's stack, from the cache if possible.
func (p *program) describe(g *waiting.Goroutine) *stack {
	p.key = append(append(p.key[:0], byte(g.State)), g.WaitReason...)
	for _, pc := range g.Stack {
		p.key = binary.NativeEndian.AppendUint64(p.key, pc)
	}
	known, ok := p.described[string(p.key)]
	if ok {
		return known
	}
	frames := p.Frames(g)
	known = &stack{state: g.State, kind: waiting.Kind(g, frames), function: "(unknown)"}
	if i := p.User(frames); i >= 0 {
		known.function = frames[i].Function
	}
	known.locations = p.locations(g, known.kind)
	if len(p.described) >= maxStacks {
		clear(p.described)
	}
	p.described[string(p.key)] = known
	return known
}

func (p *program) locations(g *waiting.Goroutine, kind string) []*symbols.Location {
	name := "[" + g.State.String() + "]"
	if g.State == reader.GoroutineWaiting {
		name = "[waiting: " + kind + "]"
	} else if kind != "" {
		name = "[" + kind + "]"
	}
	top, ok := p.tops[name]
	if !ok {
		top = &symbols.Location{Lines: []symbols.Line{{Function: name}}}
		p.tops[name] = top
	}
	stack := p.Locations(g)
	for len(stack) > 1 && len(stack[0].Lines) > 0 && inRuntime(stack[0].Lines) {
		stack = stack[1:]
	}
	return append([]*symbols.Location{top}, stack...)
}

func inRuntime(lines []symbols.Line) bool {
	return !slices.ContainsFunc(lines, func(l symbols.Line) bool { return !strings.HasPrefix(l.Function, "runtime.") })
}
