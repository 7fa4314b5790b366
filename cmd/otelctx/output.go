// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
)

// outputs are where the profiles of a recording go to: a file, a collector, both or
// neither.
type outputs struct {
	streams streams
	file    *export.File
	queue   *export.Queue // nil without a collector
	warned  map[string]bool
}

// openOutputs opens what the command line names.
func (c *recordCommand) openOutputs(s streams) (*outputs, error) {
	o := &outputs{streams: s, warned: map[string]bool{}}
	if c.Output != "" {
		var err error
		if o.file, err = export.Create(c.Output, export.Format(c.Format), s.stdout); err != nil {
			return nil, fmt.Errorf("--output: %w", err)
		}
	}
	if c.Endpoint != nil {
		client, err := export.NewClient(*c.Endpoint)
		if err != nil {
			o.discard()
			return nil, fmt.Errorf("--otlp-endpoint: %w", err)
		}
		o.queue = export.NewQueue(client)
	}
	return o, nil
}

// add takes one part of a recording.
func (o *outputs) add(data *profilespb.ProfilesData) {
	if o.file != nil {
		_ = o.file.Add(data) // Close returns the same error.
	}
	if o.queue != nil {
		o.queue.Add(data)
	}
}

// delivery returns what has become of what was to be sent since the last call, and says what
// the collector warns of.
func (o *outputs) delivery() export.Delivery {
	if o.queue == nil {
		return export.Delivery{}
	}
	d := o.queue.Delivery()
	for _, w := range d.Warnings {
		o.complainOnce("the collector warns: " + w)
	}
	return d
}

func (o *outputs) complainOnce(text string) {
	if !o.warned[text] && len(o.warned) < maxWarned {
		o.warned[text] = true
		o.streams.complainf("%s", text)
	}
}

// maxWarned bounds the texts of a collector that are remembered.
const maxWarned = 1 << 10

// complain says what was not sent, and what has to wait.
func (o *outputs) complain(d export.Delivery) {
	if err := deliveryError(d); err != nil {
		o.streams.complainf("%v", err)
	}
	if d.Retried != nil && d.Waiting > 0 {
		o.streams.complainf("%d samples wait to be sent again: %v", d.Waiting, errors.Join(d.Retried...))
	}
}

// deliveryError returns what was not sent, and why.
func deliveryError(d export.Delivery) error {
	if d.Dropped == 0 {
		return nil
	}
	return fmt.Errorf("%d samples were not sent: %w", d.Dropped, errors.Join(d.Reasons...))
}

// close ends what is being written and sent, and reports whether a file was written. The
// error says what was not written.
func (o *outputs) close(interrupted context.Context) (written bool, err error) {
	if o.file != nil {
		if err = o.file.Close(); err != nil {
			err = fmt.Errorf("--output: %w", err)
		}
		written = err == nil
	}
	if o.queue != nil {
		_ = o.queue.Close(interrupted) // What was not sent is counted.
	}
	return written, err
}

// discard is close without a recording.
func (o *outputs) discard() {
	if o.file != nil {
		_ = o.file.Discard()
	}
	if o.queue != nil {
		_ = o.queue.Close()
	}
}
