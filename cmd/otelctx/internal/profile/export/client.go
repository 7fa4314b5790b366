// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// maxRequest is the maximum size of an uncompressed request in bytes. gRPC servers, including collectors, accept 4
// MiB by default; some room is left for the request's frame.
const maxRequest = 4<<20 - 4<<10

// OTLP requires clients to send the version of the profiles schema in this header of each request, as long as the
// schema may change.
const (
	schemaVersionHeader = "otlp-profiles-development-version"
	schemaVersion       = "1"
)

// Client sends profiles to a collector over OTLP. It is safe for concurrent use.
type Client struct {
	config     config
	transport  transport
	maxRequest int
}

// transport implements OTLP/gRPC or OTLP/HTTP.
type transport interface {
	// send makes one attempt to send an encoded ExportProfilesServiceRequest. Errors wrap a *failure.
	send(ctx context.Context, encoded []byte) (*collectorpb.ExportProfilesServiceResponse, error)
	Close() error
}

// NewClient returns a client of the collector at endpoint. The variable OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL, or
// else OTEL_EXPORTER_OTLP_PROTOCOL, selects OTLP/gRPC (grpc, the default) or OTLP/HTTP (http/protobuf). If
// endpoint is empty, OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT is used. If these are
// also empty, the client uses localhost without TLS, with port 4317 for gRPC or 4318 for HTTP.
//
// For gRPC, endpoints are gRPC targets or URLs. In a URL, the scheme http disables TLS, https enables it, and the
// path is ignored. For HTTP, endpoints are URLs. NewClient appends /v1development/profiles to
// OTEL_EXPORTER_OTLP_ENDPOINT, and to the argument endpoint if it has no path.
//
// The other variables of the OTLP exporter's specification always apply: HEADERS, TIMEOUT (milliseconds for one
// attempt, 10000 by default), COMPRESSION (gzip or none), CERTIFICATE, CLIENT_CERTIFICATE and CLIENT_KEY. INSECURE
// applies to gRPC endpoints without a scheme. For each of them, OTEL_EXPORTER_OTLP_PROFILES_x takes precedence
// over OTEL_EXPORTER_OTLP_x. The client connects when it first sends a request, and reconnects after a failure.
// NewClient fails only if a setting is invalid.
func NewClient(endpoint string) (*Client, error) {
	c, err := newConfig(endpoint, os.Getenv)
	if err != nil {
		return nil, err
	}
	c.headers.Set(schemaVersionHeader, schemaVersion)
	client := &Client{config: c, maxRequest: maxRequest}
	if c.protocol == protocolHTTP {
		client.transport = newHTTPTransport(c)
		return client, nil
	}
	client.transport, err = newGRPCTransport(c)
	if err != nil {
		return nil, fmt.Errorf("endpoint %q: %w", c.target, err)
	}
	return client, nil
}

func userAgent() string {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		version = info.Main.Version
	}
	return "OTel-OTLP-Exporter-otelctx/" + version
}

// Close closes the connection. A second call does nothing.
func (c *Client) Close() error { return c.transport.Close() }

// RejectedError reports that the collector rejected some or all profiles of a request.
type RejectedError struct {
	Rejected int64 // profiles
	Message  string
}

func (r *RejectedError) Error() string {
	return fmt.Sprintf("the collector rejected %d profiles: %s", r.Rejected, r.Message)
}

type request struct {
	encoded []byte // an ExportProfilesServiceRequest
	samples uint64
	// number increases with each request.
	number uint64
	// answer is the error of the last attempt that failed for another reason than a timeout or an interrupt, or nil.
	answer error
}

// requests yields the requests that together send data. For a sample that is too large to be sent, it yields an
// error.
func (c *Client) requests(data *profilespb.ProfilesData) iter.Seq2[request, error] {
	return func(yield func(request, error) bool) {
		for part, err := range profile.Split(data, c.maxRequest) {
			var r request
			if err == nil {
				r.samples = profile.Samples(part)
				r.encoded, err = proto.Marshal(&collectorpb.ExportProfilesServiceRequest{ResourceProfiles: part.GetResourceProfiles(), Dictionary: part.GetDictionary()})
			}
			if !yield(r, err) {
				return
			}
		}
	}
}

// Pauses between attempts grow from firstPause to longestPause. If the collector asks for a pause, that pause is
// used instead, up to longestAsked.
const (
	firstPause   = 500 * time.Millisecond
	longestPause = 10 * time.Second
	longestAsked = time.Minute
)

func newPauses() *backoff.ExponentialBackOff {
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = firstPause, longestPause
	return pauses
}

// try makes one attempt to send a request, with its own timeout. The error wraps a *failure or is a
// *RejectedError. The collector's text is truncated to maxForeignText.
func (c *Client) try(ctx context.Context, r *request) (warning string, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.timeout)
	defer cancel()
	response, err := c.transport.send(ctx, r.encoded)
	if err != nil {
		if f, ok := errors.AsType[*failure](err); ok {
			f.error = shortened(f.error)
		}
		// gRPC may detect the deadline before ctx does.
		if deadline, _ := ctx.Deadline(); ctx.Err() == nil && time.Now().Before(deadline) {
			r.answer = err
		}
		return "", err
	}
	p := response.GetPartialSuccess()
	if p.GetRejectedProfiles() != 0 {
		return "", &RejectedError{Rejected: p.GetRejectedProfiles(), Message: foreignText(p.GetErrorMessage())}
	}
	return foreignText(p.GetErrorMessage()), nil
}

// Limits for a collector's response, in bytes.
const (
	maxResponse    = 64 << 10 // headers, and likewise the body
	maxForeignText = 1 << 10  // text for messages
)

// foreignText returns text from a collector as valid UTF-8. It truncates long text to maxForeignText bytes and appends
// an ellipsis.
func foreignText(s string) string {
	if len(s) > maxForeignText {
		s = s[:maxForeignText] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// shortError wraps an error and truncates its text, because a collector may have sent a long text.
type shortError struct {
	error

	text string
}

func (e *shortError) Error() string { return e.text }
func (e *shortError) Unwrap() error { return e.error }

func shortened(err error) error { return &shortError{err, foreignText(err.Error())} }

// failed returns the error to report for a request whose last attempt returned err. Unless the collector rejected
// profiles, r.answer takes precedence over err, because it says more than, for example, a timeout.
func (c *Client) failed(r request, err error) error {
	var rejected *RejectedError
	if err == nil || errors.As(err, &rejected) {
		return err
	}
	return fmt.Errorf("export to %s: %w", c.config.redactedTarget(), cmp.Or(r.answer, err))
}

// failure is the error of an attempt to send a request.
type failure struct {
	error

	again bool          // another attempt may succeed
	after time.Duration // the pause that the collector asks for, or 0
}

func (f *failure) Unwrap() error { return f.error }
