// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !cgo

package main

var work func(iterations int)
