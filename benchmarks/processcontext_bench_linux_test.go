// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package benchmarks

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/processcontext"
	"go.opentelemetry.io/ebpf-profiler/remotememory"

	"github.com/otelctx/otelctx/internal/testing/childproc"
	"github.com/otelctx/otelctx/internal/testing/oteltest"
	"github.com/otelctx/otelctx/reader"
)

// BenchmarkRead reads the typical resource from another process. op=read reads all of it,
// op=unchanged only checks that it has not changed, and op=first also opens the process and
// searches its mappings for it.
func BenchmarkRead(b *testing.B) {
	child := childproc.Start(b, rolePublisher, nil)
	child.Expect("published")
	defer child.Done()
	ours, err := reader.Open(child.PID())
	require.NoError(b, err)
	defer func() { require.NoError(b, ours.Close()) }()
	pc, err := ours.ProcessContext(b.Context())
	if errors.Is(err, reader.ErrNotPermitted) {
		noResult(b, err)
	}
	require.NoError(b, err)
	require.Len(b, pc.Resource.GetAttributes(), oteltest.Resource().Len())
	address := libpf.Address(pc.MappingAddress)
	memory := remotememory.NewProcessVirtualMemory(libpf.PID(child.PID()))

	for _, op := range []struct {
		name string
		do   func() error
	}{
		{"op=read/reader=otelctx", func() error {
			_, err := ours.ProcessContext(b.Context())
			return err
		}},
		{"op=read/reader=ebpf-profiler", func() error {
			_, err := processcontext.Read(address, memory, 0, 0)
			return err
		}},
		{"op=unchanged/reader=otelctx", func() error {
			changed, err := ours.Changed(pc.PublishedAtNS)
			if changed {
				return errors.New("unexpected change")
			}
			return err
		}},
		{"op=unchanged/reader=ebpf-profiler", func() error {
			//nolint:errorlint // the error is not wrapped, and errors.Is would be measured too
			if _, err := processcontext.Read(address, memory, pc.PublishedAtNS, 0); err != processcontext.ErrNoUpdate {
				return errors.Join(errors.New("unexpected change"), err)
			}
			return nil
		}},
		{"op=first/reader=otelctx", func() error {
			p, err := reader.Open(child.PID())
			if err != nil {
				return err
			}
			if _, err := p.ProcessContext(b.Context()); err != nil {
				return err
			}
			return p.Close()
		}},
	} {
		b.Run(op.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := op.do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
