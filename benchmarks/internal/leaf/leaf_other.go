// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !(linux && gc && !android && (amd64 || arm64))

package leaf

import (
	"errors"
	"fmt"
)

// Slots is the memory that [Store] writes to.
type Slots struct{}

// New returns an error that wraps [errors.ErrUnsupported].
func New(int, bool) (*Slots, error) { return nil, fmt.Errorf("leaf.New: %w", errors.ErrUnsupported) }

// Store does nothing.
func Store(*Slots, uint64, uint64, uint64, uint64, uint64) {}
