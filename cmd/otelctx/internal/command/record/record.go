// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package record implements otelctx record.
//
// The flags (flags.go) become a plan (plan.go). A session carries out the plan (session.go): it starts the command, if
// there is one, and the sources of samples (sources.go), and passes what they measure to the outputs (outputs.go) and
// to package report.
package record

import (
	_ "embed"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
)

// Command implements otelctx record: its flags and arguments as they were typed.
type Command struct {
	Processes processFlags  `embed:"" group:"Processes:"`
	Sampling  samplingFlags `embed:"" group:"Sampling:"`
	Profile   profileFlags  `embed:"" group:"Profile:"`
	Report    reportFlags   `embed:"" group:"Report:"`
	// Program is the command after --: see [CutCommand].
	Program []string `kong:"-"`

	planned *plan
}

// Help returns the text of otelctx record --help.
func (*Command) Help() string {
	return `Prints which functions, requests and spans used the CPU, time or memory, and can write a profile or send it to a collector. Any process can ` +
		`be recorded; those that publish their spans, as Go services with otelctx do, have them in the profile.

Examples:

    otelctx record 1234                                   a process, for 10 s
    otelctx record --service checkout -d 30 -o cpu.html   a flame graph of a service
    otelctx record -o cpu.pb.gz -- ./service -port 80     a command, until it ends
    otelctx record --wall 1234                            wall-clock time, waiting included
    otelctx record --wall --cpu -o both.pb.gz 1234        the same, and CPU time
    otelctx record --alloc 1234                           allocated memory
    otelctx record --alloc --live -d 5m 1234              memory that is still in use: leaks by endpoint
    otelctx record --all --repeat --otlp-endpoint http://localhost:4317

Needs root, or CAP_BPF and CAP_PERFMON for processes of the same user. --wall without --cpu only needs to read the processes. --alloc needs root or CAP_SYS_ADMIN.

More: otelctx man | man -l -, and ` + recordingURL
}

const recordingURL = "https://github.com/otelctx/otelctx/blob/main/docs/recording.md"

//go:embed manual.txt
var manual string

// Manual returns the text that the manual page adds to the help.
func (*Command) Manual() string { return manual }

// Validate is called by kong.
func (c *Command) Validate() (err error) {
	c.planned, err = c.newPlan()
	return err
}

// Run is called by kong.
func (c *Command) Run(s terminal.Streams) error {
	return (&session{plan: c.planned, streams: s}).run()
}
