// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
)

// protobufType is the content type of OTLP/HTTP with binary protobuf.
const protobufType = "application/x-protobuf"

// httpTransport sends profiles over OTLP/HTTP with binary protobuf.
type httpTransport struct {
	client  http.Client
	url     string
	headers http.Header
	gzip    bool
}

func newHTTPTransport(c config) *httpTransport {
	t := &httpTransport{url: c.target, headers: http.Header{}, gzip: c.gzip}
	for key, values := range c.headers {
		for _, value := range values {
			t.headers.Add(key, value)
		}
	}
	t.headers.Set("Content-Type", protobufType)
	t.headers.Set("User-Agent", userAgent())
	if c.gzip {
		t.headers.Set("Content-Encoding", "gzip")
	}
	t.client.Transport = &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: c.tls, ForceAttemptHTTP2: true, MaxResponseHeaderBytes: maxResponse}
	// Do not follow redirects: headers may contain secrets, which must be sent only to the endpoint.
	t.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return t
}

func (t *httpTransport) Close() error {
	t.client.CloseIdleConnections()
	return nil
}

func (t *httpTransport) send(ctx context.Context, encoded []byte) (*collectorpb.ExportProfilesServiceResponse, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, t.url, bytes.NewReader(t.body(encoded)))
	if err != nil {
		return nil, &failure{error: err}
	}
	request.Header = t.headers.Clone()
	answer, err := t.client.Do(request)
	if err != nil { // There was no response.
		return nil, &failure{error: err, again: true}
	}
	defer func() { _ = answer.Body.Close() }()
	content, err := io.ReadAll(io.LimitReader(answer.Body, maxResponse))
	if err != nil {
		return nil, &failure{error: err, again: true}
	}
	if answer.StatusCode/100 != http.StatusOK/100 {
		return nil, httpFailure(answer, content)
	}
	response := &collectorpb.ExportProfilesServiceResponse{}
	if answer.Header.Get("Content-Type") != protobufType {
		return response, nil // A collector that accepts everything may omit the body.
	}
	if err := proto.Unmarshal(content, response); err != nil {
		return nil, &failure{error: fmt.Errorf("the answer %s: %w", answer.Status, err)}
	}
	return response, nil
}

func (t *httpTransport) body(encoded []byte) []byte {
	if !t.gzip {
		return encoded
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(encoded) // A bytes.Buffer does not fail.
	_ = w.Close()
	return b.Bytes()
}

// httpFailure converts a response that reports an error. As the OTLP specification requires, the status
// determines whether another attempt may succeed.
func httpFailure(answer *http.Response, content []byte) *failure {
	err := fmt.Errorf("the answer was %s", answer.Status)
	status := &statuspb.Status{}
	if answer.Header.Get("Content-Type") == protobufType && proto.Unmarshal(content, status) == nil && status.GetMessage() != "" {
		err = fmt.Errorf("%w: %s", err, status.GetMessage())
	}
	f := &failure{error: err}
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		f.again = true
	default:
	}
	after := answer.Header.Get("Retry-After")
	if seconds, err := strconv.Atoi(after); err == nil {
		f.after = time.Duration(seconds) * time.Second
	} else if retryTime, err := http.ParseTime(after); err == nil {
		f.after = time.Until(retryTime)
	}
	return f
}

// redactedTarget returns the target for messages, with xxxxx instead of a password.
func (c *config) redactedTarget() string {
	if u, err := url.Parse(c.target); c.protocol == protocolHTTP && err == nil {
		return u.Redacted()
	}
	return c.target
}
