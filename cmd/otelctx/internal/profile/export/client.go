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

// maxRequest is the maximum size of a request in bytes before compression: the default limit of gRPC
// servers, including collectors, minus some room for the request's frame.
const maxRequest = 4<<20 - 4<<10

// The version of the profiles schema. OTLP requires clients to send it with each request while the schema
// may change.
const (
	schemaVersionHeader = "otlp-profiles-development-version"
	schemaVersion       = "1"
)

// Client sends profiles to a collector with OTLP. It is safe for concurrent use.
type Client struct {
	config     config
	transport  transport
	maxRequest int
}

// transport is one of OTLP's protocols, gRPC or HTTP.
type transport interface {
	// send makes one attempt to send an encoded ExportProfilesServiceRequest. Errors wrap a *failure.
	send(ctx context.Context, encoded []byte) (*collectorpb.ExportProfilesServiceResponse, error)
	Close() error
}

// NewClient returns a client of the collector at endpoint. OTEL_EXPORTER_OTLP_PROFILES_PROTOCOL or
// OTEL_EXPORTER_OTLP_PROTOCOL select OTLP/gRPC (grpc, the default) or OTLP/HTTP (http/protobuf). If
// endpoint is empty, it is OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT, and
// otherwise port 4317 or 4318 of localhost, without TLS.
//
// For gRPC an endpoint is a URL, in which http means without and https with TLS and the path is ignored, or
// a gRPC target. For HTTP it is a URL. /v1development/profiles is appended to the endpoint for all signals,
// and to an argument without a path.
//
// The other variables of the OTLP exporter's specification are always used, each as
// OTEL_EXPORTER_OTLP_PROFILES_x or else OTEL_EXPORTER_OTLP_x: HEADERS, TIMEOUT (in milliseconds, for all
// attempts; 10000), COMPRESSION (gzip or none), CERTIFICATE, CLIENT_CERTIFICATE and CLIENT_KEY. INSECURE
// applies to gRPC endpoints without a scheme. The client connects when there is something to send, and
// reconnects after a failure. The returned error is about one of the settings.
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

// RejectedError is returned if the collector rejected some of the profiles.
type RejectedError struct {
	Rejected int64 // profiles
	Message  string
}

func (r *RejectedError) Error() string {
	return fmt.Sprintf("the collector rejected %d profiles: %s", r.Rejected, r.Message)
}

// request is one request to the collector.
type request struct {
	encoded []byte // an ExportProfilesServiceRequest
	samples uint64
	// number increases with each request.
	number uint64
	// answer is the error of the last attempt that got a response.
	answer error
}

// requests yields data as consecutive requests. It yields an error for samples that cannot be sent.
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

// Pauses between attempts grow from firstPause to longestPause. A pause that the collector asks for is used
// instead, up to longestAsked.
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

// maxResponse bounds the headers of a collector's response, and separately its body. maxForeignText bounds
// the text taken from a response. Both are in bytes.
const (
	maxResponse    = 64 << 10
	maxForeignText = 1 << 10
)

// foreignText returns text from a collector as valid UTF-8, truncated to maxForeignText.
func foreignText(s string) string {
	if len(s) > maxForeignText {
		s = s[:maxForeignText] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// shortError is an error whose text is truncated, because the text may come from a collector.
type shortError struct {
	error

	text string
}

func (e *shortError) Error() string { return e.text }
func (e *shortError) Unwrap() error { return e.error }

func shortened(err error) error { return &shortError{err, foreignText(err.Error())} }

// failed returns the error for a request that could not be sent; err is the error of the last attempt.
func (c *Client) failed(r request, err error) error {
	var rejected *RejectedError
	if err == nil || errors.As(err, &rejected) {
		return err
	}
	return fmt.Errorf("export to %s: %w", c.config.redactedTarget(), cmp.Or(r.answer, err))
}

// failure is the error of an attempt.
type failure struct {
	error

	// again reports that another attempt may succeed. If after is not 0, the attempt must wait that long.
	again bool
	after time.Duration
}

func (f *failure) Unwrap() error { return f.error }
