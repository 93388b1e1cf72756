package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/proto"
)

const (
	prefixBytes     = 5       // of a gRPC message: compressed or not, and its length
	maxHealthAnswer = 4 << 10 // bytes of a health response, which needs two
	// What one probe buffers of a peer that sends without being asked.
	receiveWindow = 64 << 10
	maxHeaders    = 16 << 10
)

// askGRPC calls grpc.health.v1.Health/Check over the connection that was made:
// gRPC over HTTP/2 in plain text (gRPC over HTTP2, PROTOCOL-HTTP2.md), by the
// standard library's transport, since a gRPC channel would keep goroutines and a
// connection per target.
func askGRPC(ctx context.Context, conn net.Conn, q question) answer {
	body, err := proto.Marshal(&healthpb.HealthCheckRequest{Service: q.name})
	if err != nil {
		return answer{NoWord, err.Error()}
	}
	message := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	message = append(message, body...)
	req := (&http.Request{
		Method: http.MethodPost, Host: q.where(),
		URL: &url.URL{Scheme: "http", Host: q.where(), Path: healthpb.Health_Check_FullMethodName},
		Header: http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "User-Agent": {userAgent},
			"Accept-Encoding": {"identity"}},
		Body: io.NopCloser(bytes.NewReader(message)), ContentLength: int64(len(message)),
	}).WithContext(ctx)
	t := over(conn)
	defer t.CloseIdleConnections()
	resp, err := t.RoundTrip(req)
	if err != nil {
		return classify(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return answer{Failed, fmt.Sprintf("HTTP %d to a gRPC health check", resp.StatusCode)}
	}
	payload, err := io.ReadAll(io.LimitReader(resp.Body, prefixBytes+maxHealthAnswer+1))
	if err != nil {
		return classify(err)
	}
	return healthAnswer(resp, payload, q.name)
}

// over is an HTTP/2 transport of one connection and one request.
func over(conn net.Conn) *http.Transport {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	given := false
	return &http.Transport{
		Protocols: &protocols, DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeaders,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: receiveWindow, MaxReceiveBufferPerConnection: receiveWindow},
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if given {
				return nil, errors.New("the connection was closed before an answer")
			}
			given = true
			return conn, nil
		},
	}
}

// healthAnswer reads the status and the message of a response whose body has
// been read.
func healthAnswer(resp *http.Response, payload []byte, service string) answer {
	status := resp.Trailer.Get("Grpc-Status")
	if status == "" {
		status = resp.Header.Get("Grpc-Status") // a response of trailers alone
	}
	code, err := strconv.ParseUint(status, 10, 8)
	switch {
	case err != nil:
		return answer{Failed, "not a gRPC response: it has no status"}
	case codes.Code(code) == codes.NotFound:
		return answer{Failed, fmt.Sprintf("gRPC NotFound: its health server does not know service %q", service)}
	case codes.Code(code) == codes.Unimplemented:
		return answer{Failed, "gRPC Unimplemented: it has no grpc.health.v1 server"}
	case codes.Code(code) != codes.OK:
		return answer{Failed, "gRPC " + codes.Code(code).String()}
	case len(payload) < prefixBytes || payload[0] != 0 || len(payload) > prefixBytes+maxHealthAnswer ||
		int(binary.BigEndian.Uint32(payload[1:])) != len(payload)-prefixBytes:
		return answer{Failed, "not a health response"}
	}
	var h healthpb.HealthCheckResponse
	if err := proto.Unmarshal(payload[prefixBytes:], &h); err != nil {
		return answer{Failed, "not a health response"}
	}
	if h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return answer{Failed, "gRPC health " + strings.ToUpper(h.GetStatus().String())}
	}
	return answer{OK, ""}
}
