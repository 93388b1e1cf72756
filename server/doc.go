// Package server builds, starts and stops the whole control plane.
//
// It is the only place that knows every part: packages are handed functions of
// each other here, and their events become metrics (server/metrics) and log
// lines (slog) here. It judges nothing and holds no state of its own beside
// connections.
//
// The order of a start, each step ready before the next:
//
//  1. configuration checked: nothing that others can reach is opened without
//     identity, bundle and policy
//  2. identity: SVID source, credentials
//  3. ports bound: xDS, API, DNS, HTTP; from here DNS answers SERVFAIL,
//     /livez answers, and connections wait in the listeners' queues
//  4. store opened, desired state loaded, publisher, writer, shards built
//  5. surfaces built: xds, watch, resolve, registry, report, health, reflection
//  6. HTTP, identity and DNS run
//  7. writer, proofs of addresses, webhooks and shards run: every view is rebuilt,
//     then the snapshot is complete; every hour what is served is compared with a
//     rebuild
//  8. xDS and gRPC serve; streams that came early are answered when 7 is done
//  9. sources run; ready when 7 is done
//
// A stop is the reverse: not ready; sources; no further connections, and the
// open ones ended with a reason, spread over a few seconds; the gRPC servers;
// xds; the comparison; shards, with a last checkpoint; webhooks; proofs; the
// writer; DNS; HTTP, so that the end can be watched; the store.
//
// A Server is built by New and lives through one Run. Tests use port 0 on
// loopback and read the addresses back with Addrs.
package server
