// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package symbols

import (
	"testing"

	"github.com/otelctx/otelctx/internal/testing/programs"
)

// BenchmarkLocate looks up addresses in Go code, either for the first time (again=false) or in the
// cache (again=true). The benchmark open also opens the process, and looks up one address.
func BenchmarkLocate(b *testing.B) {
	var r report
	p := start(b, build(b, programs.Static, "prog"), &r)
	process := p.open()
	var addresses []uint64
	for _, frames := range r.Text {
		addresses = append(addresses, frames[0].PC)
	}
	b.Run("again=false", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			if i%len(addresses) == 0 {
				process.Find(addresses[0]).attached.Load().file.forget()
			}
			process.Locate(addresses[i%len(addresses)], true)
			i++
		}
	})
	b.Run("again=true", func(b *testing.B) {
		b.ReportAllocs()
		i := 0
		for b.Loop() {
			process.Locate(addresses[i%1000], i%20 == 0)
			i++
		}
	})
	b.Run("open", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			files := NewFiles()
			process, err := files.Open(p.PID())
			if err != nil {
				b.Fatal(err)
			}
			opened{process}.Locate(addresses[0], true)
			_ = process.Close()
			files.Close()
		}
	})
}
