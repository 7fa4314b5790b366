// Copyright The otelctx Authors
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/profiles/v1development"
	profilespb "go.opentelemetry.io/proto/otlp/profiles/v1development"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/otelctx/otelctx/cmd/otelctx/internal/profile"
)

// server is a collector with programmed responses.
type server struct {
	collectorpb.UnimplementedProfilesServiceServer

	mu       sync.Mutex
	answers  []error // one for each request; later requests succeed
	partial  *collectorpb.ExportProfilesPartialSuccess
	requests []*collectorpb.ExportProfilesServiceRequest
	headers  metadata.MD
	attempts int
}

func (s *server) Export(ctx context.Context, r *collectorpb.ExportProfilesServiceRequest) (*collectorpb.ExportProfilesServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts++
	s.headers, _ = metadata.FromIncomingContext(ctx)
	if len(s.answers) > 0 {
		err := s.answers[0]
		s.answers = s.answers[1:]
		return nil, err
	}
	s.requests = append(s.requests, r)
	return &collectorpb.ExportProfilesServiceResponse{PartialSuccess: s.partial}, nil
}

// listen serves s until the end of the test, and returns the address.
func (s *server) listen(t *testing.T, options ...grpc.ServerOption) string {
	t.Helper()
	return serve(t, s, options...)
}

func serve(t *testing.T, s collectorpb.ProfilesServiceServer, options ...grpc.ServerOption) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := grpc.NewServer(options...)
	collectorpb.RegisterProfilesServiceServer(g, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return l.Addr().String()
}

// listenHTTP serves s by OTLP/HTTP until the end of the test, with TLS if security is not nil, and returns
// the address.
func (s *server) listenHTTP(t *testing.T, security *tls.Config) string {
	t.Helper()
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != profilesPath || r.Header.Get("Content-Type") != protobufType {
			http.NotFound(w, r)
			return
		}
		body := io.Reader(r.Body)
		if r.Header.Get("Content-Encoding") == "gzip" {
			var err error
			if body, err = gzip.NewReader(body); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		content, err := io.ReadAll(body)
		request := &collectorpb.ExportProfilesServiceRequest{}
		if err != nil || proto.Unmarshal(content, request) != nil {
			http.Error(w, "malformed", http.StatusBadRequest)
			return
		}
		headers := metadata.MD{}
		for key, values := range r.Header {
			headers.Append(key, values...)
		}
		w.Header().Set("Content-Type", protobufType)
		var answer proto.Message
		answer, err = s.Export(metadata.NewIncomingContext(r.Context(), headers), request)
		if err != nil {
			failed := status.Convert(err)
			answer = failed.Proto()
			if len(failed.Details()) > 0 {
				w.Header().Set("Retry-After", "1")
			}
			w.WriteHeader(map[codes.Code]int{codes.Unavailable: http.StatusServiceUnavailable, codes.ResourceExhausted: http.StatusTooManyRequests}[failed.Code()])
		}
		content, err = proto.Marshal(answer)
		if assert.NoError(t, err) {
			_, _ = w.Write(content)
		}
	}))
	h.Config.ErrorLog = log.New(io.Discard, "", 0) // Clients are expected to cause errors.
	t.Cleanup(h.Close)
	if h.TLS = security; security != nil {
		h.StartTLS()
	} else {
		h.Start()
	}
	return h.Listener.Addr().String()
}

// byEachProtocol runs a test once with OTLP/gRPC and once with OTLP/HTTP.
func byEachProtocol(t *testing.T, test func(t *testing.T, listen func(t *testing.T, s *server, security *tls.Config) string)) {
	t.Helper()
	for protocol, listen := range map[string]func(*testing.T, *server, *tls.Config) string{
		protocolGRPC: func(t *testing.T, s *server, security *tls.Config) string {
			if security == nil {
				return s.listen(t)
			}
			return s.listen(t, grpc.Creds(credentials.NewTLS(security)))
		},
		protocolHTTP: func(t *testing.T, s *server, security *tls.Config) string { return s.listenHTTP(t, security) },
	} {
		t.Run(protocol, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
			test(t, listen)
		})
	}
}

func client(t *testing.T, endpoint string) *Client {
	t.Helper()
	c, err := NewClient(endpoint)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		require.NoError(t, c.Close())
	})
	return c
}

// send sends a small recording to a collector that must not return warnings. It returns the errors that
// caused samples to be dropped.
func send(t *testing.T, endpoint string) error {
	t.Helper()
	d := sendBy(t, client(t, endpoint), recording(t, 1))
	assert.Empty(t, d.Warnings)
	return errors.Join(d.Reasons...)
}

// sendBy sends all data with the given client and returns the Delivery.
func sendBy(t *testing.T, c *Client, all ...*profilespb.ProfilesData) Delivery {
	t.Helper()
	q := NewQueue(c)
	for _, data := range all {
		q.Add(data)
	}
	require.NoError(t, q.Close(context.Background()))
	d := q.Delivery()
	assert.Zero(t, d.Waiting)
	assert.Equal(t, d.Dropped > 0, len(d.Reasons) > 0)
	return d
}

func TestExport(t *testing.T) {
	byEachProtocol(t, func(t *testing.T, listen func(*testing.T, *server, *tls.Config) string) {
		t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=secret")
		t.Setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
		s := &server{}
		data := recording(t, 3)
		require.Empty(t, sendBy(t, client(t, "http://"+listen(t, s, nil)), data).Reasons)
		require.Len(t, s.requests, 1)
		got := &profilespb.ProfilesData{ResourceProfiles: s.requests[0].GetResourceProfiles(), Dictionary: s.requests[0].GetDictionary()}
		assert.True(t, proto.Equal(data, got))
		assert.Equal(t, []string{"secret"}, s.headers.Get("api-key"))
		assert.Equal(t, []string{"1"}, s.headers.Get("otlp-profiles-development-version"))
		assert.Equal(t, []string{"gzip"}, append(s.headers.Get("grpc-accept-encoding"), s.headers.Get("content-encoding")...))
		assert.Contains(t, s.headers.Get("user-agent")[0], "OTel-OTLP-Exporter-otelctx/")
	})
}

func TestExportDoesNotRetry(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted, codes.Unimplemented, codes.Internal} {
		s := &server{answers: []error{status.Error(code, "because")}}
		err := send(t, "http://"+s.listen(t))
		require.ErrorContains(t, err, "because")
		assert.Equal(t, code, status.Code(err))
		assert.Equal(t, 1, s.attempts, code)
	}
}

func TestExportDoesNotRetryByHTTP(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocolHTTP)
	attempts := 0
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { attempts++ }))
	defer elsewhere.Close()
	for code, header := range map[int]string{
		http.StatusMovedPermanently: "Location", http.StatusTemporaryRedirect: "Location",
		http.StatusBadRequest: "", http.StatusUnauthorized: "", http.StatusNotFound: "", http.StatusInternalServerError: "Retry-After",
	} {
		here := 0
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			here++
			if header != "" {
				w.Header().Set(header, map[string]string{"Location": elsewhere.URL, "Retry-After": "0"}[header])
			}
			w.WriteHeader(code)
		}))
		err := send(t, h.URL)
		h.Close()
		require.ErrorContains(t, err, "the answer was "+strconv.Itoa(code))
		assert.Equal(t, 1, here)
	}
	assert.Zero(t, attempts, "secrets in headers must reach only the endpoint")
}

// TestExportTimeout checks that the client gives up if the collector is never ready or does not exist, and counts the
// unsent samples as dropped.
func TestExportTimeout(t *testing.T) {
	byEachProtocol(t, func(t *testing.T, listen func(*testing.T, *server, *tls.Config) string) {
		unavailable := make([]error, 1000)
		for i := range unavailable {
			unavailable[i] = status.Error(codes.Unavailable, "starting")
		}
		// On a busy machine a response takes longer, so double the timeout until one arrives in time.
		for timeout := 500; ; timeout *= 2 {
			t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", strconv.Itoa(timeout))
			s := &server{answers: unavailable}
			err := send(t, "http://"+listen(t, s, nil))
			require.Error(t, err)
			if strings.Contains(err.Error(), "starting") {
				break
			}
			require.Less(t, timeout, 60_000, "%v", err)
		}

		t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "300")
		d := sendBy(t, client(t, "http://127.0.0.1:1"), recording(t, 3), recording(t, 4))
		assert.EqualValues(t, 14, d.Dropped)
		assert.Zero(t, d.Sent)
	})
}

func TestExportPartialSuccess(t *testing.T) {
	byEachProtocol(t, func(t *testing.T, listen func(*testing.T, *server, *tls.Config) string) {
		s := &server{partial: &collectorpb.ExportProfilesPartialSuccess{RejectedProfiles: 1, ErrorMessage: "too old"}}
		d := sendBy(t, client(t, "http://"+listen(t, s, nil)), recording(t, 3))
		assert.EqualValues(t, 6, d.Dropped)
		require.Len(t, d.Reasons, 1)
		assert.Equal(t, &RejectedError{Rejected: 1, Message: "too old"}, d.Reasons[0])
		assert.Equal(t, 1, s.attempts)

		// Without rejected profiles, the message is only a warning.
		s = &server{partial: &collectorpb.ExportProfilesPartialSuccess{ErrorMessage: "slow down"}}
		d = sendBy(t, client(t, "http://"+listen(t, s, nil)), recording(t, 3))
		assert.Equal(t, Delivery{Sent: 6, Warnings: []string{"slow down"}}, d)
	})
}

// TestExportLarge checks that data too large for one request is divided into several valid requests.
func TestExportLarge(t *testing.T) {
	const limit = 64 << 10
	data := recording(t, 2000)
	require.Greater(t, proto.Size(data), limit)
	s := &server{}
	address := s.listen(t, grpc.MaxRecvMsgSize(limit))
	require.NotEmpty(t, sendBy(t, client(t, "http://"+address), data).Reasons, "beyond the server's limit")
	c := client(t, "http://"+address)
	c.maxRequest = limit
	require.Empty(t, sendBy(t, c, data).Reasons)
	assert.Greater(t, len(s.requests), 1)
	samples := 0
	for _, r := range s.requests {
		part := &profilespb.ProfilesData{ResourceProfiles: r.GetResourceProfiles(), Dictionary: r.GetDictionary()}
		require.NoError(t, profile.Check(part))
		for _, sample := range part.GetResourceProfiles()[0].GetScopeProfiles()[0].GetProfiles()[0].GetSamples() {
			samples += len(sample.GetTimestampsUnixNano())
		}
	}
	assert.Equal(t, 4000, samples)
}

// TestExportTLS checks that the client verifies the collector's certificate and presents its own.
func TestExportTLS(t *testing.T) {
	byEachProtocol(t, func(t *testing.T, listen func(*testing.T, *server, *tls.Config) string) {
		certificate, certificatePath, keyPath := newCertificate(t)
		pool := x509.NewCertPool()
		pool.AddCert(certificate.Leaf)
		s := &server{}
		address := listen(t, s, &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{certificate},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
		})
		t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "300")
		require.Error(t, send(t, "https://"+address), "unknown authority")
		t.Setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", certificatePath)
		require.Error(t, send(t, "https://"+address), "no client certificate")
		t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60000")
		t.Setenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", certificatePath)
		t.Setenv("OTEL_EXPORTER_OTLP_PROFILES_CLIENT_KEY", keyPath)
		require.NoError(t, send(t, "https://"+address))
		if os.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL") == protocolGRPC {
			address = "dns:///" + address
		} else {
			address = "https://" + address + profilesPath
		}
		require.NoError(t, send(t, address), "another way to say where")
		assert.Len(t, s.requests, 2)
	})
}

// newCertificate returns a self-signed certificate and the paths of its certificate and key files.
func newCertificate(t *testing.T) (certificate tls.Certificate, certificatePath, keyPath string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	dir := t.TempDir()
	certificatePath, keyPath = filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(certificatePath, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(keyPath, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600))
	certificate, err = tls.LoadX509KeyPair(certificatePath, keyPath)
	require.NoError(t, err)
	return certificate, certificatePath, keyPath
}
