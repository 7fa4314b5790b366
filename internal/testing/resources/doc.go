// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package resources reports the resources that a test process holds: open files and mapped memory.
//
// The package is for tests only.
package resources
