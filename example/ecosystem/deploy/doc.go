// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package deploy has what it takes to run the example in containers: a Dockerfile,
// compose.yaml for Docker, and manifests for Kubernetes. It is all data; the package
// holds their tests. docs/ecosystem.md says how they are used.
package deploy
