package harness

import (
	"net"
	"strings"
	"testing"
	"time"
)

const toolLimit = 20 * time.Second

// RunGrpcurl calls a method of an mTLS server with grpcurl, by reflection, and
// returns the answer as JSON and the exit code. An empty body sends no data.
func RunGrpcurl(t testing.TB, who *SVID, addr, body, method string, flags ...string) (out string, code int) {
	t.Helper()
	args := []string{"-max-time", "10", "-cacert", who.BundleFile, "-cert", who.CertFile, "-key", who.KeyFile, "-authority", "localhost"}
	args = append(args, flags...)
	if body != "" {
		args = append(args, "-d", body)
	}
	return Run(t, toolLimit, nil, Grpcurl(t), append(args, addr, method)...)
}

// RunGrpcurlXDS lets grpcurl dial xds:///target, in plaintext towards the
// instances, and run a command: list, describe, or a method.
func RunGrpcurlXDS(t testing.TB, b Bootstrap, target string, command ...string) (out string, code int) {
	t.Helper()
	env := []string{"GRPC_XDS_BOOTSTRAP=", "GRPC_XDS_BOOTSTRAP_CONFIG=" + string(b.JSON(t))}
	return Run(t, toolLimit, env, Grpcurl(t), append([]string{"-max-time", "10", "-plaintext", "xds:///" + target}, command...)...)
}

// DNSAnswer is what dig printed.
type DNSAnswer struct {
	Status     string   // NOERROR, NXDOMAIN, …
	Flags      []string // qr, aa, tc, …
	Answer     []string // records, fields separated by one space
	Authority  []string
	Additional []string // without the EDNS pseudo record
	Text       string   // everything
}

// Has reports whether a flag is set.
func (a DNSAnswer) Has(flag string) bool {
	for _, f := range a.Flags {
		if f == flag {
			return true
		}
	}
	return false
}

// Data lists the data of the answer's records of a type.
func (a DNSAnswer) Data(rrtype string) []string {
	var data []string
	for _, r := range a.Answer {
		if f := strings.SplitN(r, " ", 5); len(f) == 5 && f[3] == rrtype {
			data = append(data, f[4])
		}
	}
	return data
}

// RunDig asks the server at host:port with dig. question is dig's own: a name,
// a type, and options such as +tcp or +bufsize=512.
func RunDig(t testing.TB, server string, question ...string) DNSAnswer {
	t.Helper()
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		t.Fatalf("dig: %v", err)
	}
	args := append([]string{"@" + host, "-p", port, "+norecurse", "+time=3", "+tries=1"}, question...)
	text, code := Run(t, toolLimit, nil, Dig(t), args...)
	if code != 0 {
		t.Fatalf("dig %v ended with %d: %s", question, code, text)
	}
	return parseDig(text)
}

func parseDig(text string) DNSAnswer {
	a := DNSAnswer{Text: text}
	var section *[]string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, ";; ->>HEADER<<-"):
			_, rest, _ := strings.Cut(line, "status: ")
			a.Status, _, _ = strings.Cut(rest, ",")
		case strings.HasPrefix(line, ";; flags: "):
			flags, _, _ := strings.Cut(strings.TrimPrefix(line, ";; flags: "), ";")
			a.Flags = strings.Fields(flags)
		case strings.HasPrefix(line, ";; ANSWER SECTION"):
			section = &a.Answer
		case strings.HasPrefix(line, ";; AUTHORITY SECTION"):
			section = &a.Authority
		case strings.HasPrefix(line, ";; ADDITIONAL SECTION"):
			section = &a.Additional
		case line == "" || strings.HasPrefix(line, ";"):
			section = nil
		case section != nil:
			*section = append(*section, strings.Join(strings.Fields(line), " "))
		}
	}
	return a
}
