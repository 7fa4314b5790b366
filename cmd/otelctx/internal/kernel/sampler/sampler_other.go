// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !(amd64 || arm64)

package sampler

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/otelctx/otelctx/reader"
)

// Sampler is unsupported on this platform.
type Sampler struct{}

var errUnsupported = fmt.Errorf("sampler on %s/%s: %w", runtime.GOOS, runtime.GOARCH, errors.ErrUnsupported)

// Open returns an error that wraps [errors.ErrUnsupported].
func Open(Config) (*Sampler, error) { return nil, errUnsupported }

// Watch returns an error that wraps [errors.ErrUnsupported].
func (*Sampler) Watch(Image, *reader.ThreadLayout) error { return errUnsupported }

// Probe returns an error that wraps [errors.ErrUnsupported].
func (*Sampler) Probe(Image, Event, *os.File, uint64) error { return errUnsupported }

// Unwatch returns an error that wraps [errors.ErrUnsupported].
func (*Sampler) Unwatch(int) error { return errUnsupported }

// Read returns an error that wraps [errors.ErrUnsupported].
func (*Sampler) Read(*Sample) error { return errUnsupported }

// Stop returns an error that wraps [errors.ErrUnsupported].
func (*Sampler) Stop() error { return errUnsupported }

// Processes returns an error that wraps [errors.ErrUnsupported].
func (*Sampler) Processes() (map[int]Process, error) { return nil, errUnsupported }

// Image returns an error that wraps [errors.ErrUnsupported].
func (*Sampler) Image(int) (Image, error) { return Image{}, errUnsupported }

// Processors returns an error that wraps [errors.ErrUnsupported].
func (*Sampler) Processors() error { return errUnsupported }

// TellsMappings returns false.
func (*Sampler) TellsMappings() bool { return false }

// Counts returns zero counts.
func (*Sampler) Counts() Counts { return Counts{} }

// Close does nothing.
func (*Sampler) Close() error { return nil }

// Changes is unsupported on this platform.
type Changes struct{}

// Changes returns an error that wraps [errors.ErrUnsupported].
func (*Sampler) Changes(ChangesConfig) (*Changes, error) { return nil, errUnsupported }

// Next returns an error that wraps [errors.ErrUnsupported].
func (*Changes) Next(*Change) error { return errUnsupported }

// Again does nothing.
func (*Changes) Again(int) {}

// Close does nothing.
func (*Changes) Close() error { return nil }
