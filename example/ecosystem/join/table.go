// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
)

func writeTable(w io.Writer, j *result) error {
	inSpans := j.CPU
	for _, s := range j.Services {
		inSpans -= s.NoSpan
	}
	if _, err := fmt.Fprintf(w, "Recorded for %s: %s of CPU time, %s of it in spans\n\n",
		seconds(j.Recorded), seconds(j.CPU), percent(inSpans, j.CPU)); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "SERVICE\tSPAN\tSPANS\tWALL\tMEAN\tCPU\tCPU/WALL\tSHARE OF CPU")
	for _, u := range j.Spans {
		mean := u.Wall / time.Duration(u.Spans)
		_, _ = fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", quoted(u.Service), quoted(u.Name), u.Spans,
			seconds(u.Wall), milliseconds(mean), seconds(u.CPU), percent(u.CPU, u.Wall), percent(u.CPU, j.CPU))
	}
	rest := func(service, name string, cpu time.Duration) {
		_, _ = fmt.Fprintf(t, "%s\t%s\t-\t-\t-\t%s\t-\t%s\n", quoted(service), name, seconds(cpu), percent(cpu, j.CPU))
	}
	for _, s := range j.Services {
		if s.NotExported > 0 {
			rest(s.Service, "(not exported)", s.NotExported)
		}
		rest(s.Service, "(no span)", s.NoSpan)
	}
	return t.Flush()
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.3fs", d.Seconds()) }

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2fms", float64(d)/float64(time.Millisecond))
}

// percent formats part as a percentage of whole, or returns "-" if whole is zero.
func percent(part, whole time.Duration) string {
	if whole <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(whole))
}

// quoted quotes s if it would disturb a terminal or the columns of the table.
func quoted(s string) string {
	q := strconv.Quote(s)
	if s == "" || q[1:len(q)-1] != s {
		return q
	}
	return s
}
