// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"time"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/publication"
)

// TopText returns the tables of endpoints and span names of one process in one period, without the explanations of columns.
func (r *Recording) TopText(l display.Layout, t *Tables) []byte {
	if r.CPU == nil {
		return r.topWall(l, t)
	}
	s := &summary{Recording: r, Tables: t, Result: r.CPU, layout: l, columns: map[string]bool{}}
	service := ""
	if len(s.Processes) > 0 {
		service = s.Processes[0].Service
	}
	s.out.WriteString(l.Heading(publication.Title(r.PID, service), fmt.Sprintf(": %s of CPU time in %v, %s of it in spans",
		display.Seconds(r.cpu(s.Samples)), periodText(s.Start, s.End), display.Share(s.Attributed, s.Samples))))
	s.endpoints()
	s.names()
	return s.out.Bytes()
}

func (r *Recording) topWall(l display.Layout, t *Tables) []byte {
	s := r.newWallReport(l, t)
	service := ""
	if len(r.Wall.Processes) > 0 {
		service = r.Wall.Processes[0].Service
	}
	s.out = append(s.out, l.Heading(publication.Title(r.PID, service), fmt.Sprintf(": %s in spans in %v, %s of it waiting",
		display.Seconds(s.total.Total), periodText(r.Wall.Start, r.Wall.End), shareOf(s.total.Waiting(), s.total.Total)))...)
	s.endpoints()
	s.names()
	return s.out
}

func periodText(start, end time.Time) time.Duration {
	return end.Sub(start).Round(10 * time.Millisecond)
}
