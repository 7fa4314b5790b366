// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

// Package statusutil stands in for the collector's package of this name, a module that
// cannot be had by itself: the two functions that otlpreceiver calls where it answers an
// HTTP request with an error. What the tests send goes by gRPC.
package statusutil

import (
	"net/http"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NewStatusFromMsgAndHTTPCode returns the status that OTLP/HTTP has for a response.
func NewStatusFromMsgAndHTTPCode(message string, httpCode int) *status.Status {
	code := codes.Unknown
	switch httpCode {
	case http.StatusBadRequest:
		code = codes.InvalidArgument
	case http.StatusUnauthorized:
		code = codes.Unauthenticated
	case http.StatusForbidden:
		code = codes.PermissionDenied
	case http.StatusNotFound:
		code = codes.Unimplemented
	case http.StatusTooManyRequests:
		code = codes.ResourceExhausted
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code = codes.Unavailable
	}
	return status.New(code, message)
}

// GetRetryInfo returns when to try again, as far as a status says so.
func GetRetryInfo(s *status.Status) *errdetails.RetryInfo {
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return info
		}
	}
	return nil
}
