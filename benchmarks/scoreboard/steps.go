// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"regexp"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/spanctx"
)

var stepSyntax = regexp.MustCompile(`^(\d?)(?:([-+@!~>_])([a-z0-9]*)(?:([<^])([a-z]*))?)?(?:(=)([a-z]*))?$`)

// steps runs a program in the notation of [spansteps.Run], with these operations and expectations:
//
//	+c      start span c without a parent
//	+c<p    start span c with the context of p; +c^p the same as a new root
//	-c      end span c
//	@c      attach the context of c; @ an empty context
//	!       detach the last attached context
//	~c      refresh with the context of c
//	>2      start goroutine 2, which inherits the span; other goroutines start outside of all spans
//	>2<c    start goroutine 2 by spanctx.Go with the context of c; >2< with an empty context
//	_       block for a moment
//	=c      work, and expect that span c is published; = that none is
//
// A step without the number of a goroutine runs on the caller's. Unlike there, goroutines are not locked to threads, and
// spans that the program leaves open stay open.
//
// [spansteps.Run]: https://pkg.go.dev/github.com/otelctx/otelctx/internal/testing/spansteps#Run
func (r *run) steps(program string) {
	contexts := map[string]context.Context{"": context.Background()}
	attached := map[string][]spanctx.Attachment{}
	workers := map[string]worker{}
	for text := range strings.FieldsSeq(program) {
		parts := stepSyntax.FindStringSubmatch(text)
		if parts == nil {
			panic(r.pattern + ": invalid step " + text)
		}
		goroutine, operation, name, how, parent := parts[1], parts[2], parts[3], parts[4], parts[5]
		step := func() {
			switch operation {
			case "+":
				var opts []trace.SpanStartOption
				if how == "^" {
					opts = append(opts, trace.WithNewRoot())
				}
				contexts[name], _ = r.start(contexts[parent], name, opts...)
			case "-":
				trace.SpanFromContext(contexts[name]).End()
			case "@":
				attached[goroutine] = append(attached[goroutine], spanctx.Attach(contexts[name]))
			case "!":
				last := len(attached[goroutine]) - 1
				attached[goroutine][last].Detach()
				attached[goroutine] = attached[goroutine][:last]
			case "~":
				spanctx.Refresh(contexts[name])
			case ">":
				w := make(worker)
				workers[name] = w
				if how == "" {
					go w.loop()
				} else {
					spanctx.Go(contexts[parent], func(context.Context) { w.loop() })
				}
			case "_":
				block()
			}
			switch {
			case parts[6] == "":
			case parts[7] == "":
				r.out()
			default:
				r.in(contexts[parts[7]])
			}
		}
		if goroutine == "" {
			step()
			continue
		}
		if workers[goroutine] == nil {
			r.elsewhere(func() { workers[goroutine] = newWorker() })
		}
		workers[goroutine].do(step)
	}
	for _, w := range workers {
		close(w)
	}
}
