// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/cenkalti/backoff/v5"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// maxRequest is the size in bytes, before compression, up to which profiles are sent
// in one request. It is what gRPC servers, collectors among them, accept unless told
// otherwise, less some room for the request's frame.
const maxRequest = 4<<20 - 4<<10

// The version of the profiles' schema, which OTLP has a client name in each request
// for as long as the schema may change.
const (
	schemaVersionHeader = "otlp-profiles-development-version"
	schemaVersion       = "1"
)

// Client sends profiles to a collector by OTLP/gRPC. It is safe for concurrent use.
type Client struct {
	config     config
	connection *grpc.ClientConn
	maxRequest int
}

// NewClient returns a client of the collector at endpoint: a URL, where http means
// without and https with TLS and the path does not count, or a gRPC target. If it is
// empty OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT holds, or OTEL_EXPORTER_OTLP_ENDPOINT, or
// http://localhost:4317. The other variables of the OTLP exporter's specification
// count in any case, each as OTEL_EXPORTER_OTLP_PROFILES_x before
// OTEL_EXPORTER_OTLP_x: HEADERS, TIMEOUT (in milliseconds, for all attempts; 10000),
// COMPRESSION (gzip or none), CERTIFICATE, CLIENT_CERTIFICATE, CLIENT_KEY, and
// INSECURE (where the endpoint has no scheme). It connects when there is something to
// send, and again after a failure; an error is one of the settings.
func NewClient(endpoint string) (*Client, error) {
	c, err := newConfig(endpoint, os.Getenv)
	if err != nil {
		return nil, err
	}
	connection, err := grpc.NewClient(c.target,
		grpc.WithTransportCredentials(c.credentials),
		grpc.WithUserAgent(userAgent()))
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", c.target, err)
	}
	return &Client{config: c, connection: connection, maxRequest: maxRequest}, nil
}

func userAgent() string {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	return "OTel-OTLP-Exporter-otelctx/" + version
}

// Close closes the connection. A second call does nothing.
func (c *Client) Close() error {
	if err := c.connection.Close(); status.Code(err) != codes.Canceled {
		return err
	}
	return nil
}

// RejectedError is the error of an export of which the collector did not accept everything.
type RejectedError struct {
	Rejected int64 // profiles
	Message  string
}

func (r *RejectedError) Error() string {
	return fmt.Sprintf("the collector rejected %d profiles: %s", r.Rejected, r.Message)
}

// Export sends data, and tries again for as long as the timeout allows where the
// protocol says that it may help. What is too large for one request is sent in
// several, which have profiles with ids of their own; if one of them fails the rest
// is sent nevertheless. Warnings are what a collector says that has accepted everything.
// The error wraps a *RejectedError where one has not.
func (c *Client) Export(ctx context.Context, data *profilespb.ProfilesData) (warnings []string, err error) {
	parts, err := profile.Split(data, c.maxRequest)
	errs := []error{err}
	for _, part := range parts {
		warning, err := c.send(ctx, part)
		errs = append(errs, err)
		if warning != "" {
			warnings = append(warnings, warning)
		}
	}
	return warnings, errors.Join(errs...)
}

func (c *Client) send(ctx context.Context, data *profilespb.ProfilesData) (warning string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.timeout)
	defer cancel()
	headers := c.config.headers.Copy()
	headers.Set(schemaVersionHeader, schemaVersion)
	ctx = metadata.NewOutgoingContext(ctx, headers)
	var options []grpc.CallOption
	if c.config.compressor != "" {
		options = append(options, grpc.UseCompressor(c.config.compressor))
	}
	request := &collectorpb.ExportProfilesServiceRequest{ResourceProfiles: data.GetResourceProfiles(), Dictionary: data.GetDictionary()}
	client := collectorpb.NewProfilesServiceClient(c.connection)
	deadline, _ := ctx.Deadline()
	var answer error // of the last attempt that had one
	response, err := backoff.Retry(ctx, func() (*collectorpb.ExportProfilesServiceResponse, error) {
		response, err := client.Export(ctx, request, options...)
		// gRPC may find the time to be over before ctx does.
		if err != nil && ctx.Err() == nil && time.Now().Before(deadline) {
			answer = err
		}
		return response, retryable(err)
	}, backoff.WithBackOff(backoff.NewExponentialBackOff()), backoff.WithMaxElapsedTime(c.config.timeout))
	if err != nil {
		if answer == nil {
			answer = err
		}
		return "", fmt.Errorf("export to %s: %w", c.config.target, answer)
	}
	p := response.GetPartialSuccess()
	if p.GetRejectedProfiles() != 0 {
		return "", &RejectedError{Rejected: p.GetRejectedProfiles(), Message: p.GetErrorMessage()}
	}
	return p.GetErrorMessage(), nil
}

// retryable returns err as backoff understands it: what the OTLP specification calls
// retryable as it is, or with the time that the collector asks to wait, and the rest as
// permanent.
func retryable(err error) error {
	if err == nil {
		return nil
	}
	s := status.Convert(err)
	var wait time.Duration
	asked := false
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			wait, asked = info.GetRetryDelay().AsDuration(), true
		}
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Aborted, codes.OutOfRange, codes.Unavailable, codes.DataLoss:
	case codes.ResourceExhausted:
		if !asked {
			return backoff.Permanent(err)
		}
	default:
		return backoff.Permanent(err)
	}
	if asked && wait > 0 {
		return &backoff.RetryAfterError{Duration: wait}
	}
	return err
}
