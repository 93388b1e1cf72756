package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// EnvoyConfig says how one Envoy is bootstrapped (PEERS.md part 1).
type EnvoyConfig struct {
	XDS      string // host:port of the xDS server
	SVID     *SVID  // nil: plaintext
	ServerID string // SPIFFE ID that the server must have; empty: any of the bundle
	NodeID   string
	Region   string
	Zone     string
	Outbound int  // port of the outbound listener on 127.0.0.1; 0: a free one
	SotW     bool // state of the world instead of delta
}

// Envoy is a running real Envoy.
type Envoy struct {
	*Process
	Outbound netip.AddrPort // where the application would dial

	adminFile string
	client    http.Client
}

// EnvoyHost is one host of a cluster as Envoy's admin interface shows it.
type EnvoyHost struct {
	Addr     netip.AddrPort
	Weight   int
	Priority int
	Health   string // HEALTHY, …
	Region   string
	Zone     string
}

// StartEnvoy starts Envoy and waits for its admin interface; WaitLive waits for
// its configuration.
func StartEnvoy(t testing.TB, cfg EnvoyConfig) *Envoy {
	t.Helper()
	if cfg.Outbound == 0 {
		cfg.Outbound = FreeBlock(t)
	}
	doc, err := json.Marshal(cfg.bootstrap(t))
	if err != nil {
		t.Fatalf("envoy bootstrap: %v", err)
	}
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, doc, 0o600); err != nil {
		t.Fatalf("envoy bootstrap: %v", err)
	}
	return StartEnvoyFile(t, cfg.NodeID, file, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(cfg.Outbound)))
}

// StartEnvoyFile starts Envoy with a bootstrap that somebody else wrote, such as
// the product itself; outbound is where that makes the listener bind.
func StartEnvoyFile(t testing.TB, name, file string, outbound netip.AddrPort) *Envoy {
	t.Helper()
	e := &Envoy{
		Outbound:  outbound,
		adminFile: filepath.Join(t.TempDir(), "admin"),
		client:    http.Client{Timeout: 5 * time.Second},
	}
	t.Cleanup(e.client.CloseIdleConnections)
	const admin = `{admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}}`
	e.Process = Start(t, "envoy "+name, EnvoyBinary(t), nil, "-c", file, "--config-yaml", admin, "--concurrency", "1",
		"--disable-hot-restart", "--log-level", "warning", "--admin-address-path", e.adminFile)
	Eventually(t, 30*time.Second, "envoy's admin interface", func() error {
		if !e.Running() {
			t.Fatalf("envoy ended: %s", tail(e.Output(), 4<<10))
		}
		_, err := e.admin("/ready", http.StatusOK, http.StatusServiceUnavailable)
		return err
	})
	return e
}

// WaitLive waits until Envoy has had an answer for everything that it asked at
// its start.
func (e *Envoy) WaitLive(t testing.TB, limit time.Duration) {
	t.Helper()
	Eventually(t, limit, "envoy is LIVE", func() error {
		_, err := e.admin("/ready", http.StatusOK)
		return err
	})
}

// Hosts lists the hosts of a cluster; nil when Envoy does not know the cluster.
func (e *Envoy) Hosts(t testing.TB, cluster string) []EnvoyHost {
	t.Helper()
	var doc struct {
		Statuses []struct {
			Name  string `json:"name"`
			Hosts []struct {
				Address struct {
					Socket struct {
						Address string `json:"address"`
						Port    uint16 `json:"port_value"`
					} `json:"socket_address"`
				} `json:"address"`
				Weight   int `json:"weight"`
				Priority int `json:"priority"`
				Health   struct {
					EDS string `json:"eds_health_status"`
				} `json:"health_status"`
				Locality struct {
					Region string `json:"region"`
					Zone   string `json:"zone"`
				} `json:"locality"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := json.Unmarshal([]byte(e.Admin(t, "/clusters?format=json")), &doc); err != nil {
		t.Fatalf("envoy /clusters: %v", err)
	}
	for _, c := range doc.Statuses {
		if c.Name != cluster {
			continue
		}
		hosts := []EnvoyHost{}
		for _, h := range c.Hosts {
			addr, err := netip.ParseAddr(h.Address.Socket.Address)
			if err != nil {
				t.Fatalf("envoy /clusters: %v", err)
			}
			hosts = append(hosts, EnvoyHost{
				Addr: netip.AddrPortFrom(addr, h.Address.Socket.Port), Weight: h.Weight, Priority: h.Priority,
				Health: h.Health.EDS, Region: h.Locality.Region, Zone: h.Locality.Zone,
			})
		}
		return hosts
	}
	return nil
}

// Stats returns the counters and gauges whose names match the regular expression.
func (e *Envoy) Stats(t testing.TB, filter string) map[string]int64 {
	t.Helper()
	text := e.Admin(t, "/stats?filter="+url.QueryEscape(filter))
	stats := make(map[string]int64)
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.ParseInt(value, 10, 64); ok && err == nil {
			stats[name] = n
		}
	}
	return stats
}

// Rejected is the number of updates that Envoy has refused (NACKed), over all
// resource types.
func (e *Envoy) Rejected(t testing.TB) int64 {
	t.Helper()
	var sum int64
	for _, n := range e.Stats(t, `\.update_rejected$`) {
		sum += n
	}
	return sum
}

// ConfigDump is what Envoy holds, endpoints included, as JSON.
func (e *Envoy) ConfigDump(t testing.TB) string {
	t.Helper()
	return e.Admin(t, "/config_dump?include_eds")
}

// Admin reads a path of the admin interface.
func (e *Envoy) Admin(t testing.TB, path string) string {
	t.Helper()
	body, err := e.admin(path, http.StatusOK)
	if err != nil {
		t.Fatalf("envoy admin: %v", err)
	}
	return body
}

func (e *Envoy) admin(path string, accept ...int) (string, error) {
	addr, err := os.ReadFile(e.adminFile)
	if err != nil {
		return "", err
	}
	resp, err := e.client.Get("http://" + strings.TrimSpace(string(addr)) + path)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	for _, code := range accept {
		if resp.StatusCode == code {
			return string(body), nil
		}
	}
	return "", fmt.Errorf("%s: %s: %s", path, resp.Status, strings.TrimSpace(string(body)))
}

type object = map[string]any

func (cfg EnvoyConfig) bootstrap(t testing.TB) object {
	t.Helper()
	api := "DELTA_GRPC"
	if cfg.SotW {
		api = "GRPC"
	}
	retry := object{"retry_back_off": object{"base_interval": "0.2s", "max_interval": "2s"}}
	service := []any{object{"envoy_grpc": object{"cluster_name": "xds", "retry_policy": retry}}}
	source := object{"resource_api_version": "V3", "ads": object{}}
	outbound := net.JoinHostPort("127.0.0.1", strconv.Itoa(cfg.Outbound))
	return object{
		"node": object{
			"id": cfg.NodeID, "cluster": "test",
			"locality": object{"region": cfg.Region, "zone": cfg.Zone},
			"metadata": object{"sightline.outbound": outbound},
		},
		"dynamic_resources": object{
			"ads_config": object{
				"api_type": api, "transport_api_version": "V3",
				"set_node_on_first_message_only": true, "grpc_services": service,
			},
			"cds_config": source, "lds_config": source,
		},
		"cluster_manager": object{"load_stats_config": object{
			"api_type": "GRPC", "transport_api_version": "V3", "grpc_services": service,
		}},
		"static_resources": object{"clusters": []any{cfg.xdsCluster(t)}},
	}
}

func (cfg EnvoyConfig) xdsCluster(t testing.TB) object {
	t.Helper()
	const options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
	host, port, err := net.SplitHostPort(cfg.XDS)
	if err != nil {
		t.Fatalf("envoy: address of the xDS server: %v", err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatalf("envoy: port of the xDS server: %v", err)
	}
	c := object{
		"name": "xds", "type": "STATIC", "connect_timeout": "1s",
		"typed_extension_protocol_options": object{options: object{
			"@type": "type.googleapis.com/" + options,
			"explicit_http_config": object{"http2_protocol_options": object{
				"connection_keepalive": object{"interval": "5s", "timeout": "2s"},
			}},
		}},
		"load_assignment": object{"cluster_name": "xds", "endpoints": []any{object{
			"lb_endpoints": []any{object{"endpoint": object{"address": socket(host, number)}}},
		}}},
	}
	if cfg.SVID != nil {
		c["transport_socket"] = cfg.transportSocket()
	}
	return c
}

func (cfg EnvoyConfig) transportSocket() object {
	roots := object{"trusted_ca": object{"filename": cfg.SVID.BundleFile}}
	if cfg.ServerID != "" {
		roots["match_typed_subject_alt_names"] = []any{object{"san_type": "URI", "matcher": object{"exact": cfg.ServerID}}}
	}
	return object{
		"name": "envoy.transport_sockets.tls",
		"typed_config": object{
			"@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
			"sni":   "localhost",
			"common_tls_context": object{
				"tls_params":     object{"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"},
				"alpn_protocols": []any{"h2"},
				"tls_certificates": []any{object{
					"certificate_chain": object{"filename": cfg.SVID.CertFile},
					"private_key":       object{"filename": cfg.SVID.KeyFile},
				}},
				"validation_context": roots,
			},
		},
	}
}

func socket(host string, port int) object {
	return object{"socket_address": object{"address": host, "port_value": port}}
}
