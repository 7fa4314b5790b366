// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"errors"
	"fmt"
	"go/version"
	"strings"

	"github.com/otelctx/otelctx/internal/wire"
	"github.com/otelctx/otelctx/reader"
)

// Carrier is what a span is read from. Zero is whatever there is.
type Carrier int

const (
	// ThreadSlots is [reader.ThreadSlots].
	ThreadSlots = Carrier(reader.ThreadSlots)
	// GoroutineTable is [reader.GoroutineTable].
	GoroutineTable = Carrier(reader.GoroutineTable)
	// GoroutineRecord is [reader.GoroutineRecord].
	GoroutineRecord = Carrier(reader.GoroutineRecord)
	// Labels are the profiler labels of the goroutine, whoever has set them, as the
	// OpenTelemetry eBPF profiler reads them: the values of trace_id and span_id.
	Labels Carrier = 4
)

// String returns the carrier as labels, or as [reader.CarrierKind] does.
func (c Carrier) String() string {
	if c == Labels {
		return "labels"
	}
	return reader.CarrierKind(c).String()
}

// includes reports whether spans of a carrier of a process are read.
func (c Carrier) includes(kind reader.CarrierKind) bool { return c == 0 || c == Carrier(kind) }

// Check returns why no span can be read of a process by the carrier, nil if one can. A
// process that shows none at all yet, whose layout may be nil, is no error. The error may
// quote what the process has chosen.
func (c Carrier) Check(layout *reader.ThreadLayout) error {
	if c == 0 || layout == nil || len(layout.Carriers) == 0 {
		return nil
	}
	if c == Labels {
		return labelsError(layout)
	}
	err := errors.New("the process does not have this carrier")
	for _, one := range layout.Carriers {
		if Carrier(one.Kind) == c {
			err = one.Err
		}
	}
	return err
}

// labelsError returns why the labels of goroutines cannot be read.
func labelsError(layout *reader.ThreadLayout) error {
	if r := &layout.Runtime; r.GM < 0 || r.MCurg < 0 || r.GGoid < 0 || r.GLabels < 0 {
		return errors.New("the process does not say where goroutines keep their labels")
	}
	text := goVersion(layout.Advertisement)
	for word := range strings.FieldsSeq(text) { // such as "devel go1.27-0123abc Mon Jan 2"
		// Labels are a map in older releases. Newer ones the profiler does not know either.
		if version.IsValid(word) && version.Compare(word, "go1.24") >= 0 && version.Compare(word, "go1.28") < 0 {
			return nil
		}
	}
	return fmt.Errorf("the layout of labels is known for Go 1.24 to 1.27, and not for %q", text)
}

// goVersion returns the version of Go that a process says it is built with, "" if none.
func goVersion(c *reader.ProcessContext) string {
	if c == nil {
		return ""
	}
	for _, kv := range c.Message.GetAttributes() {
		if kv.GetKey() == wire.KeyGo+wire.GoKeyVersion {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}
