// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !cgo || !linux

package main

var cgoPatterns []pattern
