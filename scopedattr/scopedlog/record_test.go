// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package scopedlog

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
)

// The other tests of this package are beside those of package scopedattr, which compare all signals.

// TestRecordFieldsAreKnown fails if the API adds fields to the record that withAttributes does not copy.
func TestRecordFieldsAreKnown(t *testing.T) { assert.True(t, knowsAllFields) }

// TestBothImplementations checks that withAttributes returns the same record whether or not it knows all
// fields, and that neither implementation writes into the attributes that copies of a record share.
func TestBothImplementations(t *testing.T) {
	defer func(before bool) { knowsAllFields = before }(knowsAllFields)
	scoped := func(value string) []attribute.KeyValue {
		return []attribute.KeyValue{attribute.String("own0", "lost"), attribute.String("a", value)}
	}
	for _, n := range []int{1, 3, 5, 6, 10} {
		var record log.Record
		record.SetEventName("event")
		record.SetTimestamp(time.Unix(1, 2))
		record.SetObservedTimestamp(time.Unix(3, 4))
		record.SetSeverity(log.SeverityWarn)
		record.SetSeverityText("careful")
		record.SetBody(attribute.StringValue("body"))
		record.SetErr(errors.New("broken"))
		for i := range n { // one at a time, so that the slice has spare capacity
			record.AddAttributes(attribute.String(fmt.Sprint("own", i), ""))
		}
		var want log.Record
		for _, knowsAllFields = range []bool{false, true} {
			got := withAttributes(record, scoped("first"))
			_ = withAttributes(record, scoped("second"))
			require.Equal(t, n, record.AttributesLen())
			var all []attribute.KeyValue
			got.WalkAttributes(func(kv attribute.KeyValue) bool {
				all = append(all, kv)
				return true
			})
			require.Len(t, all, n+1)
			assert.Equal(t, attribute.String("own0", ""), all[0])
			assert.Equal(t, attribute.String("a", "first"), all[n])
			if !knowsAllFields {
				want = got
			}
			assert.Equal(t, fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got))
		}
	}
}
