// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/sdkspan"
	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// node is what the model knows of a span: its transaction, and what its goroutine was in.
type node struct {
	ctx         context.Context
	span        trace.Span
	transaction uint64
	around      *node
	over        bool
}

// Spans start in contexts of spans that are live or over, as roots, in remote contexts of the
// same trace, and end in any order. Their transactions and what the goroutine shows are those
// of the model.
func TestRandomTrees(t *testing.T) {
	s := newService(t)
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	trees := testenv.Rounds(500, 10_000)
	locked(func() {
		for range trees {
			s.tree(random)
			if t.Failed() {
				return
			}
		}
	})
}

func (s *service) tree(random *rand.Rand) {
	var nodes []*node
	var in *node // what the goroutine is in, by the model
	start := func() {
		n := &node{around: in}
		ctx, opts := s.t.Context(), []trace.SpanStartOption(nil)
		local := len(nodes) > 0 && random.IntN(8) > 0
		if len(nodes) > 0 {
			parent := nodes[random.IntN(len(nodes))]
			ctx, n.transaction = parent.ctx, parent.transaction
			if !local && random.IntN(2) == 0 {
				opts = append(opts, trace.WithNewRoot())
			} else if !local {
				ctx = trace.ContextWithRemoteSpanContext(ctx, parent.span.SpanContext())
			}
		}
		n.ctx, n.span = s.tracer.Start(ctx, "span", opts...)
		if !local {
			n.transaction = idOf(n.span).SpanID
		}
		require.Equal(s.t, n.transaction, s.transactionOf(n.span))
		nodes, in = append(nodes, n), n
	}
	end := func(n *node) {
		n.span.End()
		n.over = true
		for at := in; at != nil; at = at.around {
			if at == n {
				in = n.around
				break
			}
		}
	}
	for range 4 + random.IntN(30) {
		if n := random.IntN(3); n > 0 || len(nodes) == 0 {
			start()
		} else {
			end(nodes[random.IntN(len(nodes))])
		}
		if in == nil {
			s.shownHere(nil)
		} else {
			s.shownHere(in.span)
		}
	}
	for _, n := range nodes {
		end(n)
	}
	s.shownHere(nil)
}

// Writers that meet in an entry do not make it say what neither of them has said.
func TestRootsManyAtOnce(t *testing.T) {
	r := newRoots()
	var ids []uint64
	for id := range uint64(20) {
		ids = append(ids, id+1)
	}
	key := func(id uint64) sdkspan.Key { return sdkspan.Key{TraceIDHigh: id * 5, TraceIDLow: id * 7, SpanID: id} }
	var wg sync.WaitGroup
	var found atomic.Int64
	for g := range uint64(4) {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(g, 0))
			for range testenv.Rounds(100_000, 1_000_000) {
				id := ids[random.IntN(len(ids))]
				r.add(key(id), id*3)
				id = ids[random.IntN(len(ids))]
				if got := r.find(key(id)); got != 0 {
					found.Add(1)
					if got != id*3 {
						t.Errorf("%#x", got)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	assert.Positive(t, found.Load())
}
