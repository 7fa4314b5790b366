// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/reader"
)

const roleReader = "reader"

// visit holds the data that a reader finds between opening a process and closing it.
type visit struct {
	Contexts []published
	Spans    []sight
	// Busy counts reads that failed because of concurrent writes.
	Busy int
	// Errors are other failures.
	Errors []string
}

// published describes a process context that a reader found at some moment between From and To, in
// nanoseconds of the wall clock.
type published struct {
	// By is the name of the reader.
	By       string
	From, To int64
	// Generation is the generation of the resource. Beside is the generation of the attributes
	// published outside of the resource.
	Generation, Beside int
}

// sight is a span that a reader found.
type sight struct {
	shown

	// By is the carrier that the span was read from.
	By string
	// LocalRoot is zero if unknown.
	LocalRoot [8]byte
}

// read is the main function of a reader process. It receives a process id, reads that process until it
// is interrupted, and sends a visit in JSON after each visit.
func read(parent *childproc.Parent) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	line, _ := parent.Receive()
	pid, err := strconv.Atoi(line)
	parent.Must(err)
	for ctx.Err() == nil {
		v := visitor{pid: pid}
		if err := v.visit(); err != nil {
			v.found.Errors = append(v.found.Errors, err.Error())
		}
		b, err := json.Marshal(v.found)
		parent.Must(err)
		parent.Send("%s", b)
		time.Sleep(20 * time.Millisecond)
	}
}

// visitor reads the service during one visit.
type visitor struct {
	pid   int
	p     *reader.Process
	found visit
}

// threadReads is the number of times that a visitor reads the threads during a visit.
const threadReads = 5

// visit opens the service, reads its context and its spans, and closes it.
func (v *visitor) visit() (err error) {
	if v.p, err = reader.Open(v.pid); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, v.p.Close()) }()
	ctx := context.Background()
	p := published{By: byReader, From: time.Now().UnixNano()}
	pc, err := v.p.ProcessContext(ctx)
	p.To = time.Now().UnixNano()
	if err != nil {
		return v.busy(err)
	}
	if err := p.setGenerations(textsOf(pc.Resource.GetAttributes()), textsOf(pc.Attributes)); err != nil {
		return err
	}
	v.found.Contexts = append(v.found.Contexts, p)
	for range threadReads {
		if err := v.readThreads(ctx); err != nil {
			return err
		}
	}
	return nil
}

// busy counts err and returns nil if err reports a concurrent write. Otherwise it returns err.
func (v *visitor) busy(err error) error {
	if errors.Is(err, reader.ErrBusy) {
		v.found.Busy++
		return nil
	}
	return err
}

// readThreads reads the spans of all threads.
func (v *visitor) readThreads(ctx context.Context) error {
	from := time.Now().UnixNano()
	threads, err := v.p.Threads(ctx)
	to := time.Now().UnixNano()
	if err != nil {
		return v.busy(err)
	}
	for _, t := range threads {
		if s := t.Span; s != nil {
			if !s.Proven {
				return fmt.Errorf("not proven: %+v", s)
			}
			v.found.Spans = append(v.found.Spans, sight{
				shown{s.TraceID, s.SpanID, from, to}, byReaderFrom + s.Carrier.String(), s.LocalRootSpanID,
			})
		}
	}
	return nil
}

// textsOf returns the attributes in kvs that identify the generation, by key.
func textsOf(kvs []*commonpb.KeyValue) map[string]any {
	texts := map[string]any{}
	for _, kv := range kvs {
		switch kv.GetKey() {
		case generationKey:
			texts[generationKey] = float64(kv.GetValue().GetIntValue())
		case fillerKey:
			texts[fillerKey] = kv.GetValue().GetStringValue()
		}
	}
	return texts
}

// setGenerations sets Generation and Beside, given the attributes of the resource and the attributes
// published outside of it.
func (p *published) setGenerations(resource, beside map[string]any) (err error) {
	if p.Generation, err = generationOf(resource); err != nil {
		return fmt.Errorf("%s: resource: %w", p.By, err)
	}
	if p.Beside, err = generationOf(beside); err != nil {
		return fmt.Errorf("%s: beside it: %w", p.By, err)
	}
	return nil
}

// generationOf returns the generation that has these attributes, or an error if there is no such
// generation.
func generationOf(attributes map[string]any) (int, error) {
	number, ok := attributes[generationKey].(float64)
	text, isText := attributes[fillerKey].(string)
	if !ok || !isText || text != filler(int(number)) {
		return 0, fmt.Errorf("attributes of no generation: %v and a text of %d bytes", attributes[generationKey], len(text))
	}
	return int(number), nil
}
