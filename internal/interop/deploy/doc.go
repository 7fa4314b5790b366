// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package deploy tests the files of example/ecosystem/deploy: the Dockerfile, compose.yaml and the
// Kubernetes manifests. It parses them with the code of Docker and Kubernetes, and runs their pods as
// containers.
package deploy
