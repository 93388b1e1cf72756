// Package bootstrap writes the configuration that a real client needs to find
// us: a gRPC xDS bootstrap and an Envoy bootstrap.
//
// It is pure text in, text out. Every setting that is not obvious says why it
// is there; the facts behind them were measured on real clients.
package bootstrap

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"text/template"
)

// Params is what both kinds of bootstrap are made from. Paths are taken as
// they are: relative ones are relative to where the client starts.
type Params struct {
	Server  string // host:port of the xDS listener
	NodeID  string
	Cluster string // node.cluster: a label for people
	Region  string
	Zone    string

	Cert, Key, Bundle string // the client's SVID, its key, and the roots it believes
	TrustDomain       string // of the server's identity

	Listen netip.AddrPort // Envoy's outbound listener
	Admin  netip.AddrPort // Envoy's admin page; zero port: none
}

// GRPC returns a bootstrap that stock gRPC clients of every language accept.
//
// One server only: grpc-go 1.85 follows neither server after a fallback and
// return. ignore_resource_deletion: without it a missing Listener or Cluster
// ends all calls. node.locality always: Node fails without it.
func GRPC(p Params) ([]byte, error) {
	type object = map[string]any
	files := object{"certificate_file": p.Cert, "private_key_file": p.Key, "ca_certificate_file": p.Bundle}
	provider := object{"certificate_file": p.Cert, "private_key_file": p.Key, "ca_certificate_file": p.Bundle, "refresh_interval": "60s"}
	b := object{
		"xds_servers": []object{{
			"server_uri":      p.Server,
			"channel_creds":   []object{{"type": "tls", "config": files}},
			"server_features": []string{"xds_v3", "ignore_resource_deletion"},
		}},
		"node": object{
			"id": p.NodeID, "cluster": p.Cluster,
			"locality": object{"region": p.Region, "zone": p.Zone},
		},
		"certificate_providers":                  object{"default": object{"plugin_name": "file_watcher", "config": provider}},
		"server_listener_resource_name_template": "grpc/server?xds.resource.listening_address=%s",
	}
	out, err := json.MarshalIndent(b, "", "  ")
	return append(out, '\n'), err
}

// Envoy returns a bootstrap for a sidecar: delta ADS over mTLS, load reports
// on, one outbound listener that we send.
func Envoy(p Params) ([]byte, error) {
	server, err := netip.ParseAddrPort(p.Server)
	if err != nil {
		return nil, fmt.Errorf("server %q: Envoy's static cluster needs ip:port: %w", p.Server, err)
	}
	var b strings.Builder
	err = envoyTemplate.Execute(&b, struct {
		Params
		ServerAddr netip.Addr
		ServerPort uint16
	}{p, server.Addr(), server.Port()})
	return []byte(b.String()), err
}

var envoyTemplate = template.Must(template.New("envoy").Funcs(template.FuncMap{"q": quote}).Parse(`# Envoy bootstrap, made by: sightline bootstrap envoy
node:
  id: {{q .NodeID}}
  cluster: {{q .Cluster}}
  locality: {region: {{q .Region}}, zone: {{q .Zone}}}
  # Where the outbound listener that we send is bound.
  metadata: {sightline.outbound: {{q .Listen.String}}}
{{- if .Admin.IsValid}}
admin:
  address: {socket_address: {address: {{q .Admin.Addr.String}}, port_value: {{.Admin.Port}}}}
{{- end}}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    set_node_on_first_message_only: true
    grpc_services:
    - envoy_grpc:
        cluster_name: sightline
        # Envoy's own default grows to 30 s: an outage would last that much longer.
        retry_policy: {retry_back_off: {base_interval: 0.2s, max_interval: 2s}}
  cds_config: {resource_api_version: V3, ads: {}}
  lds_config: {resource_api_version: V3, ads: {}}
cluster_manager:
  # Callers' outcomes, per endpoint; a Cluster cannot switch this on.
  load_stats_config:
    api_type: GRPC
    transport_api_version: V3
    grpc_services: [{envoy_grpc: {cluster_name: sightline}}]
static_resources:
  clusters:
  - name: sightline
    type: STATIC # list every replica as an endpoint of this one cluster
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        # Without keepalive a path that drops packets is noticed by nobody.
        explicit_http_config: {http2_protocol_options: {connection_keepalive: {interval: 5s, timeout: 2s}}}
    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        common_tls_context:
          alpn_protocols: [h2]
          tls_params: {tls_minimum_protocol_version: TLSv1_3, tls_maximum_protocol_version: TLSv1_3}
          tls_certificates:
          - certificate_chain: {filename: {{q .Cert}}}
            private_key: {filename: {{q .Key}}}
          validation_context:
            trusted_ca: {filename: {{q .Bundle}}}
            match_typed_subject_alt_names:
            - {san_type: URI, matcher: {prefix: {{q (printf "spiffe://%s/sightline/server/" .TrustDomain)}}}}
    load_assignment:
      cluster_name: sightline
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: {{q .ServerAddr.String}}, port_value: {{.ServerPort}}}}}
`))

// quote writes a YAML double-quoted scalar; JSON's strings are a subset of them.
func quote(s string) string {
	out, err := json.Marshal(s)
	if err != nil {
		return `""` // no Go string fails to marshal
	}
	return string(out)
}
