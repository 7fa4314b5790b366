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

// Carrier is the kind of memory that spans are read from. Zero means all kinds: see [Config].
type Carrier int

const (
	// ThreadSlots is [reader.ThreadSlots].
	ThreadSlots = Carrier(reader.ThreadSlots)
	// GoroutineTable is [reader.GoroutineTable].
	GoroutineTable = Carrier(reader.GoroutineTable)
	// GoroutineRecord is [reader.GoroutineRecord].
	GoroutineRecord = Carrier(reader.GoroutineRecord)
	// Labels reads the values of trace_id and span_id from the goroutine's pprof labels, whoever set them,
	// like the OpenTelemetry eBPF profiler.
	Labels Carrier = 4
)

// String returns "labels", or the text of the [reader.CarrierKind].
func (c Carrier) String() string {
	if c == Labels {
		return "labels"
	}
	return reader.CarrierKind(c).String()
}

func (c Carrier) includes(kind reader.CarrierKind) bool { return c == 0 || c == Carrier(kind) }

// Check returns an error if the spans of a process cannot be read from the carrier. The error says why, and
// may contain text chosen by the process. It is nil for a process that does not publish spans yet, whose
// layout may be nil.
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

// labelsError returns nil if the labels of goroutines can be read, and otherwise an error that says why not.
func labelsError(layout *reader.ThreadLayout) error {
	if r := &layout.Runtime; r.GM == 0 || r.MCurg == 0 || r.GGoid == 0 || r.GLabels == 0 {
		return errors.New("the process does not say where goroutines keep their labels")
	}
	text := goVersion(layout.Advertisement)
	for word := range strings.FieldsSeq(text) { // such as "devel go1.27-0123abc Mon Jan 2"
		// Older releases use a map for labels. The eBPF profiler does not support newer ones.
		if version.IsValid(word) && version.Compare(word, "go1.24") >= 0 && version.Compare(word, "go1.28") < 0 {
			return nil
		}
	}
	return fmt.Errorf("the layout of labels is known for Go 1.24 to 1.27, and not for %q", text)
}

// goVersion returns the Go version that a process publishes, or "" if it publishes none.
func goVersion(c *reader.ProcessContext) string {
	if c == nil {
		return ""
	}
	for _, kv := range c.Attributes {
		if kv.GetKey() == wire.KeyGo+wire.GoKeyVersion {
			return kv.GetValue().GetStringValue()
		}
	}
	return ""
}
