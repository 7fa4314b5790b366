// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile/export"
	"github.com/otelctx/otelctx/cmd/otelctx/internal/terminal"
)

// outputs are the destinations of a recording's profiles: a file, a collector, both or neither. With
// --repeat there is a file for each period.
type outputs struct {
	streams terminal.Streams
	// interrupted is done once the user interrupts the recording. From then on, outputs wait as briefly as
	// possible.
	interrupted context.Context //nolint:containedctx // It is about the whole recording.
	create      func(path string) (*export.File, error)
	file        *export.File // nil if there is no file, or while a period has no samples
	mu          sync.Mutex   // guards what add and roll change
	path        string       // of the file
	used        bool         // whether the file has content
	rolling     *export.Rolling
	period      time.Time     // when the period began
	queue       *export.Queue // nil without a collector
	warned      map[string]bool
	// failed is set if a file of a period could not be written, or old files could not be removed. unsent
	// counts the samples that were not sent.
	failed error
	unsent uint64
}

// openOutputs opens the outputs that the command line selects.
func (s *session) openOutputs(interrupted context.Context) (*outputs, error) {
	o := &outputs{streams: s.streams, interrupted: interrupted, period: time.Now(), warned: map[string]bool{}}
	o.create = func(path string) (*export.File, error) {
		file, err := export.Create(interrupted, path, s.profile.format, s.streams.Stdout, s.kinds()...)
		if err != nil {
			err = fmt.Errorf("--output: %w", err)
		}
		return file, err
	}
	if s.profile.path != "" {
		o.path = s.profile.path
		if s.repeat {
			rolling := export.NewRolling(s.profile.path, s.profile.keep)
			o.rolling, o.path = &rolling, rolling.Path(o.period)
		}
		var err error
		if o.file, err = o.create(o.path); err != nil {
			return nil, err
		}
	}
	if s.profile.endpoint != nil {
		client, err := export.NewClient(*s.profile.endpoint)
		if err != nil {
			o.discard()
			return nil, fmt.Errorf("--otlp-endpoint: %w", err)
		}
		o.queue = export.NewQueue(client) //nolint:contextcheck // Close takes the context.
	}
	return o, nil
}

// add writes and sends one part of a recording. It is safe for concurrent use.
func (o *outputs) add(data *profilespb.ProfilesData) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file == nil && o.rolling != nil {
		o.path = o.rolling.Path(o.period)
		var err error
		if o.file, err = o.create(o.path); err != nil {
			o.fail(err)
		}
	}
	if o.file != nil {
		o.used = true
		_ = o.file.Add(data) // Close returns the error again.
	}
	if o.queue != nil {
		o.queue.Add(data)
	}
}

// fail prints a write error at once, and makes close return an error later.
func (o *outputs) fail(err error) {
	o.streams.Complainf("%v", err)
	o.failed = errors.New("some of the profiles were not written")
}

// roll ends the file of a period, and returns its path, or "" if there is none. It may run at the same time as add.
func (o *outputs) roll(end time.Time) (written string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.rolling == nil {
		return ""
	}
	file, used := o.file, o.used
	o.period, o.file, o.used = end, nil, false
	switch {
	case file == nil:
		return ""
	case !used: // The name of this file has the start of the empty period.
		if err := file.Discard(); err != nil {
			o.fail(fmt.Errorf("--output: %w", err))
		}
		return ""
	}
	if err := file.Close(); err != nil {
		o.fail(fmt.Errorf("--output: %w", err))
		return ""
	}
	if err := o.rolling.Prune(); err != nil {
		o.fail(fmt.Errorf("--keep: %w", err))
	}
	return o.path
}

// delivery returns what was sent and dropped since the last call, and prints the warnings of the collector.
func (o *outputs) delivery() export.Delivery {
	if o.queue == nil {
		return export.Delivery{}
	}
	d := o.queue.Delivery()
	o.unsent += d.Dropped
	for _, w := range d.Warnings {
		o.complainOnce("the collector warns: " + w)
	}
	return d
}

func (o *outputs) complainOnce(text string) {
	if !o.warned[text] && len(o.warned) < maxWarned {
		o.warned[text] = true
		o.streams.Complainf("%s", text)
	}
}

// maxWarned is the maximum number of different collector warnings that are printed.
const maxWarned = 1 << 10

// complain prints how many samples were dropped, and how many wait for a retry, with the reasons.
func (o *outputs) complain(d export.Delivery) {
	if err := deliveryError(d); err != nil {
		o.streams.Complainf("%v", err)
	}
	if d.Retried != nil && d.Waiting > 0 {
		o.streams.Complainf("%d samples wait to be sent again: %v", d.Waiting, errors.Join(d.Retried...))
	}
}

// deliveryError returns an error about the samples that were dropped, or nil.
func deliveryError(d export.Delivery) error {
	if d.Dropped == 0 {
		return nil
	}
	return fmt.Errorf("%d samples were not sent: %w", d.Dropped, errors.Join(d.Reasons...))
}

// close completes the file and waits until all samples have been sent or dropped. If there are no samples, it
// discards the file. It returns the path of the file, or "" if no file was written. err is the reason if
// writing failed.
func (o *outputs) close() (written string, err error) {
	switch {
	case o.file == nil:
	case !o.used:
		err = o.file.Discard()
	case o.rolling != nil:
		written = o.roll(o.period)
	default:
		if err = o.file.Close(); err != nil {
			err = fmt.Errorf("--output: %w", err)
		} else {
			written = o.path
		}
	}
	if o.queue != nil {
		_ = o.queue.Close(o.interrupted) // delivery counts the samples that were not sent.
	}
	return written, errors.Join(err, o.failed)
}

// discard closes the outputs and removes the file.
func (o *outputs) discard() {
	if o.file != nil {
		_ = o.file.Discard()
	}
	if o.queue != nil {
		_ = o.queue.Close(o.interrupted)
	}
}
