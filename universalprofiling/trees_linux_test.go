// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package universalprofiling

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/internal/testing/testenv"
)

// node is a span in the model. previous is the span that its goroutine was in before it started, and
// ancestors are its ancestors by context.
type node struct {
	ctx         context.Context
	span        trace.Span
	transaction uint64
	parent      *node
	ancestors   []*node
	depth       int
	previous    *node
	dispatched  bool
	over        bool
}

// nearest returns the span that must be published for a goroutine whose position is n: n itself if
// it is live, otherwise its nearest live ancestor, or nil.
func nearest(n *node) *node {
	if n == nil || !n.over {
		return n
	}
	for _, a := range n.ancestors {
		if !n.dispatched && !a.over {
			return a
		}
	}
	return nil
}

// setLineage sets the fields that depend on parent, the span of the context.
func (n *node) setLineage(parent *node) {
	if n.depth = parent.depth + 1; parent.over {
		parent = parent.parent
	}
	if parent == nil || parent.over {
		return
	}
	n.ancestors = append([]*node{parent}, parent.ancestors...)
	n.ancestors = n.ancestors[:min(len(n.ancestors), 3)]
	n.dispatched = n.previous == nil || !slices.Contains(n.ancestors, n.previous) &&
		(n.previous.dispatched || !slices.ContainsFunc(n.previous.ancestors, func(a *node) bool { return slices.Contains(n.ancestors, a) }))
}

// TestRandomTrees checks transactions and published spans against the model. It starts spans in
// contexts of live and ended spans, as roots, and in remote contexts of the same trace, and ends
// them in any order.
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
	var in *node // the span that the goroutine is in, according to the model
	start := func() {
		n := &node{previous: in}
		ctx, opts := s.t.Context(), []trace.SpanStartOption(nil)
		local := false
		if len(nodes) > 0 {
			// Limit the nesting of contexts, so that all ancestors are known.
			if parent := nodes[random.IntN(len(nodes))]; parent.depth < 3 {
				ctx, n.transaction = parent.ctx, parent.transaction
				switch local = random.IntN(8) > 0; {
				case local:
					n.setLineage(parent)
					n.parent = parent
				case random.IntN(2) == 0:
					n.setLineage(parent)
					opts = append(opts, trace.WithNewRoot())
				default:
					ctx = trace.ContextWithRemoteSpanContext(ctx, parent.span.SpanContext())
				}
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
		if n.over {
			return
		}
		n.span.End()
		n.over = true
		at := in
		for at != nil && at != n && slices.Contains(at.ancestors, n) {
			at = at.previous
		}
		if at == n {
			at = n.previous
		}
		in = nearest(at)
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
