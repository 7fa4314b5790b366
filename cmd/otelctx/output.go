// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/export"
)

// outputs are where the profiles of a recording go to: a file, a collector, both or
// neither. What goes to a collector waits for it on its own goroutine.
type outputs struct {
	streams streams
	file    *export.File
	client  *export.Client

	sending sync.WaitGroup
	parts   chan *profilespb.ProfilesData
	// left out are the parts that a collector was too slow for. errs are those of sending;
	// who sends has them until sending is over.
	leftOut int
	errs    []error
}

// waitingParts is how many parts may wait for a collector, about two minutes.
const waitingParts = 4

// openOutputs opens what the command line names.
func (c *recordCommand) openOutputs(s streams) (*outputs, error) {
	o := &outputs{streams: s, parts: make(chan *profilespb.ProfilesData, waitingParts)}
	if c.Endpoint != nil {
		var err error
		if o.client, err = export.NewClient(*c.Endpoint); err != nil {
			return nil, fmt.Errorf("--otlp-endpoint: %w", err)
		}
		o.sending.Go(o.send)
	}
	if c.Output != "" {
		var err error
		if o.file, err = export.Create(c.Output, export.Format(c.Format), s.stdout); err != nil {
			o.discard()
			return nil, fmt.Errorf("--output: %w", err)
		}
	}
	return o, nil
}

// add takes one part of a recording.
func (o *outputs) add(data *profilespb.ProfilesData) {
	if o.file != nil {
		_ = o.file.Add(data) // Close returns the same error.
	}
	if o.client == nil {
		return
	}
	select {
	case o.parts <- data:
	default:
		o.leftOut++
	}
}

// send sends what there is to send.
func (o *outputs) send() {
	warned := map[string]bool{}
	for data := range o.parts {
		warnings, err := o.client.Export(context.Background(), data)
		if err != nil {
			o.errs = append(o.errs, err)
		}
		for _, w := range warnings {
			if !warned[w] {
				warned[w] = true
				o.streams.complainf("the collector warns: %s", w)
			}
		}
	}
}

// close ends what is being written and sent, and reports whether a file was written. The
// error says what was not.
func (o *outputs) close() (written bool, err error) {
	if o.file != nil {
		if err = o.file.Close(); err != nil {
			err = fmt.Errorf("--output: %w", err)
		}
		written = err == nil
	}
	err = errors.Join(err, o.finish())
	if o.leftOut > 0 {
		err = errors.Join(err, fmt.Errorf("%d parts of the profile were not sent: the collector is too slow", o.leftOut))
	}
	return written, err
}

// finish ends what is being sent.
func (o *outputs) finish() error {
	close(o.parts)
	o.sending.Wait()
	if o.client != nil {
		_ = o.client.Close()
	}
	return errors.Join(o.errs...)
}

// discard is close without a recording.
func (o *outputs) discard() {
	if o.file != nil {
		_ = o.file.Discard()
	}
	_ = o.finish()
}
