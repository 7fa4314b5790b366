// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package ownprofile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The kernel is not asked again for each of many spans whose end time is in the past.
func TestAskedOnceForOldSpans(t *testing.T) {
	var d Detector
	before := time.Now()
	asked := map[uint64]bool{}
	for range 1000 {
		d.Running(before.Add(-time.Hour))
		asked[d.LastAsked.Load()] = true
	}
	assert.LessOrEqual(t, len(asked), int(time.Since(before)/AskEvery)+1)
}
