// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/display"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/filter"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/hostproc"
)

// processFlags select processes.
type processFlags struct {
	PIDs     []processID   `arg:""                   help:"${record_pids}" name:"pid"              optional:""`
	PIDList  []processID   `help:"${record_pid}"     name:"pid"            placeholder:"PID"       short:"p"`
	All      bool          `help:"${record_all}"     short:"a"`
	Services []string      `help:"${record_service}" name:"service"        placeholder:"NAME,..."  sep:"none"`
	Names    []string      `help:"${record_name}"    name:"name"           placeholder:"NAME,..."  sep:"none"`
	Proc     hostproc.Flag `help:"${proc}"           name:"proc"           placeholder:"DIR"`
	Cgroups  []string      `help:"${record_cgroup}"  name:"cgroup"         placeholder:"GROUP,..." sep:"none"`
}

// samplingFlags say what is recorded, how often and how long.
type samplingFlags struct {
	Duration  *time.Duration `help:"${record_duration}"   placeholder:"TIME"                                           short:"d"`
	Freq      rates          `help:"${record_freq}"       placeholder:"N"                                              short:"F"`
	Wall      bool           `help:"${record_wall}"`
	CPU       bool           `help:"${record_cpu}"        name:"cpu"`
	Alloc     bool           `help:"${record_alloc}"`
	Live      bool           `help:"${record_live}"`
	Filters   []filterFlag   `help:"${record_filter}"     name:"filter"                                                placeholder:"KEY=VALUE"  sep:"none"`
	Kernel    bool           `help:"${record_kernel}"`
	NoSymbols bool           `help:"${record_no_symbols}"`
	Carrier   string         `default:""                  enum:",labels,goroutine_record,goroutine_table,thread_slots" help:"${record_carrier}" placeholder:"NAME"`
	Stacks    bool           `help:"${record_stacks}"     hidden:""                                                    short:"g"`
}

// profileFlags say where profiles go.
type profileFlags struct {
	Output   outputPath `help:"${record_output}"        placeholder:"FILE"                        short:"o"`
	Format   string     `default:""                     enum:",pprof,otlp,json,jsonl,folded,html" help:"${record_format}" placeholder:"FORMAT"`
	Endpoint *string    `help:"${record_otlp_endpoint}" name:"otlp-endpoint"                      placeholder:"URL"`
	Repeat   bool       `help:"${record_repeat}"`
	Keep     int        `default:"0"                    help:"${record_keep}"                     placeholder:"N"`
	IDs      bool       `help:"${record_id_attributes}" name:"id-attributes"`
}

// reportFlags say what is printed.
type reportFlags struct {
	GroupBy string `help:"${record_group_by}" placeholder:"KIND"`
	Top     int    `default:"10"              help:"${record_top}"`
	Wide    bool   `help:"${record_wide}"`
	Quiet   bool   `help:"${record_quiet}"    short:"q"`
	JSON    bool   `help:"${record_json}"     name:"json"`
}

// FlagHelp explains the flags. The command line interpolates it into the tags, which would be too long otherwise.
var FlagHelp = kong.Vars{
	"record_pids":    "Processes to record.",
	"record_pid":     "The same as the PID arguments.",
	"record_all":     "All processes that publish a context or spans, even if they start later.",
	"record_service": "Processes that publish one of these names as service.name.",
	"record_name":    "Processes whose executable, or name in ps, is one of these.",
	"record_cgroup":  "Processes in one of these control groups: a path, a name, or at least 12 digits of a container's id.",

	"record_duration": "How long to record: seconds, or a duration such as 1m30s. 0: until interrupted, or until the processes end. " +
		"Default: 10s, or until the command ends.",
	"record_freq": "Samples per second of CPU time, 99 by default; with --wall snapshots per second, 20 by default; " +
		"with --wall --cpu both: 99,20.",
	"record_wall": "Record where the wall-clock time of spans goes, waiting included, instead of CPU time. " +
		"Needs only permission to read the processes.",
	"record_cpu":   "With --wall or --alloc: record CPU time as well, which needs the privileges for sampling.",
	"record_alloc": "Record where memory is allocated instead of CPU time. Needs root, and Go services for amd64 with spanctx.",
	"record_live": "With --alloc: show what is still in use, of the memory allocated during the recording, after the last complete " +
		"garbage collection.",
	"record_filter": "Keep only samples with this attribute of the resource, the span or the sample; " +
		"trace_id and span_id count as attributes. Repeated filters must all match.",
	"record_kernel":     "Record the kernel's part of stacks too.",
	"record_no_symbols": "Record addresses and build ids instead of function names.",
	"record_carrier":    "Read spans from one place only: labels, goroutine_record, goroutine_table or thread_slots.",
	"record_stacks":     "Record stacks. Always on; the flag is for those used to perf record -g.",

	"record_output": "Write the profile to a file. The ending of its name selects the format: .pb.gz, .otlp, .json, .jsonl, .folded or .html. " +
		"-: standard output.",
	"record_format":        "The format, for other names: pprof, otlp, json, jsonl, folded or html.",
	"record_otlp_endpoint": "Send the profile to a collector by OTLP. Empty: to the one that OTEL_EXPORTER_OTLP_ENDPOINT names.",
	"record_repeat":        "After --duration, write or send the profile, print the tables, and go on without a gap.",
	"record_keep":          "With --repeat and --output, how many of the files to keep; 0: all.",
	"record_id_attributes": "Add the ids of spans to each sample as attributes, for backends that drop links.",

	"record_group_by": "Print one kind of table: span, endpoint, trace, service, function, attribute or attribute=KEY.",
	"record_top":      "Rows of a table; 0: all.",
	"record_wide":     "Print whole ids and names, whatever the terminal's width.",
	"record_quiet":    "Print no tables, only warnings, and write or send the profile.",
	"record_json":     "Print a JSON object instead of tables.",
}

// outputPath is the value of --output.
type outputPath string

// Decode implements [kong.MapperValue]. It fails if the flag is repeated, because a recording writes one file.
func (o *outputPath) Decode(ctx *kong.DecodeContext) error {
	token, err := ctx.Scan.PopValue("string")
	if err != nil {
		return err
	}
	if *o != "" {
		return fmt.Errorf("there is one output, not both %s and %v", display.String(string(*o)), token.Value)
	}
	*o = outputPath(fmt.Sprint(token.Value))
	return nil
}

// processID is an argument that must be a process id.
type processID int

// UnmarshalText is called by kong.
func (p *processID) UnmarshalText(text []byte) error {
	n, err := strconv.Atoi(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a process id; for the processes with a name say --name %[1]s, and to start a command -- %[1]s", text)
	}
	*p = processID(n)
	return nil
}

// rates is the value of --freq: numbers separated by commas. If the flag is repeated, the last value counts.
// With an ordinary slice, kong would append the values.
type rates []int

// Decode implements [kong.MapperValue].
func (r *rates) Decode(ctx *kong.DecodeContext) error {
	var text string
	if err := ctx.Scan.PopValueInto("number", &text); err != nil {
		return err
	}
	*r = nil
	for number := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(number)
		if err != nil {
			return fmt.Errorf("%q is not a number", number)
		}
		*r = append(*r, n)
	}
	return nil
}

// filterFlag is the value of --filter: KEY=VALUE.
type filterFlag filter.Filter

// Decode implements [kong.MapperValue].
func (f *filterFlag) Decode(ctx *kong.DecodeContext) error {
	var text string
	if err := ctx.Scan.PopValueInto("filter", &text); err != nil {
		return err
	}
	key, value, ok := strings.Cut(text, "=")
	if !ok || key == "" {
		return fmt.Errorf("expected KEY=VALUE, but got %q", text)
	}
	*f = filterFlag{Key: key, Value: value}
	return nil
}

const name = "record"

// CutCommand splits the arguments of record at --. command is nil without --, and empty if nothing follows.
func CutCommand(args []string) (rest, command []string) {
	if len(args) == 0 || args[0] != name {
		return args, nil
	}
	for i, arg := range args {
		if arg == "--" {
			return args[:i], append([]string{}, args[i+1:]...)
		}
	}
	return args, nil
}
