// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/otelctx/otelctx/benchmarks/internal/measured"
)

// csvDocument is the content of the CSV file, with a row for each publication, pattern and observer. Command results
// turns the file into a page.
type csvDocument struct {
	costs []string
	rows  [][]string
}

// add adds rows for the publication that the board measured last. looked lists its observers.
func (d *csvDocument) add(b *board, patterns []pattern, looked []observer) {
	for _, o := range looked {
		if c := b.costs[o.name]; c != nil && c.Service > 0 {
			d.costs = append(d.costs, fmt.Sprintf("cost of %s, %s: %.1f %% of the service's CPU time, %d MB",
				o.title, b.publication.name, 100*c.Used.Seconds()/c.Service.Seconds(), c.Memory>>20))
		}
	}
	for _, p := range patterns {
		row := b.rows[p.name()]
		for _, o := range looked {
			if !o.judges(&p) {
				continue
			}
			t := row.Tallies[o.name]
			cells := []string{b.publication.name, p.name(), p.about, row.says(), o.title}
			for _, n := range []int{t.samples(), t.Right, t.None, t.Wrong, t.Shown, t.Outside} {
				cells = append(cells, strconv.Itoa(n))
			}
			d.rows = append(d.rows, cells)
		}
	}
}

func (d *csvDocument) write(b *board) error {
	columns := []string{"publish", "pattern", "about", "contract", "observer", "samples", "right", "none", "wrong", "shown", "outside"}
	arguments := fmt.Sprintf("arguments: -publish %s -parallel %d -cpu %v", b.publish, b.parallel, b.cpu)
	return measured.Write(b.csv, append([]string{arguments, "libraries: " + libraries()}, d.costs...), append([][]string{columns}, d.rows...))
}
