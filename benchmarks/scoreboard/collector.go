// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/collector/pdata/pprofile"
	"go.opentelemetry.io/otel/trace"

	"github.com/otelctx/otelctx/benchmarks/internal/stacknumber"
)

// reportInterval is how often a receiver reports.
const reportInterval = time.Second

// collectorConfig is a Collector's configuration that writes the profiles of a receiver to a file. Each message is
// preceded by its size.
const collectorConfig = `
receivers:
  %s:
    samples_per_second: %d
    reporter_interval: %v
    reporter_jitter: 0
exporters:
  file:
    path: %s
    format: proto
service:
  telemetry:
    metrics:
      level: none
  pipelines:
    profiles:
      receivers: [%s]
      exporters: [file]
`

// collect starts a Collector with a receiver that samples the whole machine. It returns once the
// receiver can name the functions of the process with this id.
func (b *board) collect(o observer, dir string, pid int) (stopFunc, error) {
	config := filepath.Join(dir, "collector.yaml")
	text := fmt.Sprintf(collectorConfig, o.receiver, frequency, reportInterval, filepath.Join(dir, o.profile), o.receiver)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(b.otelcol, "--feature-gates=service.profilesSupport", "--config", config)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var said bytes.Buffer
	lines := bufio.NewScanner(stderr)
	for ready := false; !ready; ready = strings.Contains(lines.Text(), "Everything is ready") {
		if !lines.Scan() {
			return nil, fmt.Errorf("%s has ended before it was ready: %w\n%s", b.otelcol, cmd.Wait(), &said)
		}
		_, _ = fmt.Fprintln(&said, lines.Text())
	}
	drained := make(chan struct{})
	go func() {
		for lines.Scan() {
			continue
		}
		close(drained)
	}()
	for known := false; !known; time.Sleep(reportInterval / 10) {
		text, err := os.ReadFile(filepath.Join(dir, o.profile))
		if err != nil {
			return nil, err
		}
		_, err = samplesOf(text, pid, func(d pprofile.ProfilesDictionary, s pprofile.Sample) error {
			known = known || slices.Contains(functions(d, s), "main.warmUp")
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return func() (cost, error) {
		// Wait for the last samples: a sample is in the report for its own interval or for the next.
		time.Sleep(3 * reportInterval)
		return interrupt(cmd, syscall.SIGTERM, func() error {
			<-drained
			return cmd.Wait()
		})
	}, nil
}

// readCollected reads the file of a Collector. It skips samples of other processes, and those without a number.
func readCollected(b []byte, pid int) (map[seen]int, error) {
	all := map[seen]int{}
	rest, err := samplesOf(b, pid, func(d pprofile.ProfilesDictionary, s pprofile.Sample) error {
		number, ok := stacknumber.Find(functions(d, s))
		if !ok {
			return nil
		}
		span, err := given(d, s)
		all[seen{Number: number, Given: span}] += max(1, s.TimestampsUnixNano().Len())
		return err
	})
	if err == nil && rest > 0 {
		err = errors.New("the last message of the Collector is incomplete")
	}
	return all, err
}

// samplesOf calls f for each sample of a process in b, the content of a Collector's file. The last message may be
// incomplete; rest is the number of its bytes.
func samplesOf(b []byte, pid int, f func(pprofile.ProfilesDictionary, pprofile.Sample) error) (rest int, err error) {
	// Do not decode with package proto: it rejects a message with a name that is not valid UTF-8,
	// and any process on the machine may have such a name.
	var messages pprofile.ProtoUnmarshaler
	for len(b) >= 4 && uint64(len(b)-4) >= uint64(binary.BigEndian.Uint32(b)) {
		size := binary.BigEndian.Uint32(b)
		message, err := messages.UnmarshalProfiles(b[4 : 4+size])
		if err != nil {
			return 0, err
		}
		b = b[4+size:]
		for _, rp := range message.ResourceProfiles().All() {
			if id, ok := rp.Resource().Attributes().Get("process.pid"); !ok || id.Int() != int64(pid) {
				continue
			}
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					for _, s := range p.Samples().All() {
						if err := f(message.Dictionary(), s); err != nil {
							return 0, err
						}
					}
				}
			}
		}
	}
	return len(b), nil
}

// functions returns the names of the functions on a stack, the innermost first.
func functions(d pprofile.ProfilesDictionary, s pprofile.Sample) []string {
	var names []string
	for _, at := range d.StackTable().At(int(s.StackIndex())).LocationIndices().All() {
		lines := d.LocationTable().At(int(at)).Lines()
		if lines.Len() == 0 {
			names = append(names, "?")
		}
		for _, line := range lines.All() {
			names = append(names, d.StringTable().At(int(d.FunctionTable().At(int(line.FunctionIndex())).NameStrindex())))
		}
	}
	return names
}

// given returns the span that the receiver gave to a sample: the span of its link or, without a link,
// the span in its attributes, which hold the goroutine's labels.
func given(d pprofile.ProfilesDictionary, s pprofile.Sample) (id, error) {
	if i := s.LinkIndex(); i != 0 {
		link := d.LinkTable().At(int(i))
		return id{trace.TraceID(link.TraceID()), trace.SpanID(link.SpanID())}, nil
	}
	labels := map[string]string{}
	for _, i := range s.AttributeIndices().All() {
		a := d.AttributeTable().At(int(i))
		labels[d.StringTable().At(int(a.KeyStrindex()))] = a.Value().AsString()
	}
	const prefix = "process.context.label."
	return parseID(labels[prefix+"trace_id"], labels[prefix+"span_id"])
}
