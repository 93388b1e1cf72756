package probe

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
)

// userAgent is what an instance's access log shows for a probe.
const userAgent = "sightline-prober"

// maxInterim is how many 1xx responses are read before the one that counts.
const maxInterim = 5

// askHTTP sends one GET and reads the response, up to a number of bytes: what
// lies beyond is not read and changes nothing. It speaks over the connection
// that was made, so a redirect has nowhere to lead.
func askHTTP(conn net.Conn, q question, responseBytes int) answer {
	u, err := url.ParseRequestURI(q.path)
	if err != nil {
		return answer{Failed, err.Error()}
	}
	u.Scheme, u.Host = "http", q.where()
	req := &http.Request{Method: http.MethodGet, URL: u, Host: u.Host, Close: true,
		Header: http.Header{"User-Agent": {userAgent}, "Accept": {"*/*"}}}
	if err := req.Write(conn); err != nil {
		return classify(err)
	}
	limited := &io.LimitedReader{R: conn, N: int64(responseBytes)}
	in := bufio.NewReader(limited)
	resp, err := readResponse(in, req)
	switch {
	case err != nil && limited.N <= 0:
		return answer{Failed, fmt.Sprintf("the response has headers of more than %d bytes", responseBytes)}
	case err != nil:
		return classify(err)
	}
	// The body has to arrive too: an instance that hangs in it does not serve.
	_, err = io.Copy(io.Discard, resp.Body)
	switch {
	case err != nil && limited.N > 0:
		return classify(err)
	case resp.StatusCode >= 200 && resp.StatusCode <= 299:
		return answer{OK, ""}
	case resp.StatusCode >= 300 && resp.StatusCode <= 399:
		return answer{Failed, fmt.Sprintf("HTTP %d: redirects are not followed", resp.StatusCode)}
	}
	return answer{Failed, fmt.Sprintf("HTTP %d", resp.StatusCode)}
}

func readResponse(in *bufio.Reader, req *http.Request) (*http.Response, error) {
	for range maxInterim {
		resp, err := http.ReadResponse(in, req)
		if err != nil || resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols {
			return resp, err
		}
	}
	return nil, errors.New("the response has too many interim ones before it")
}
