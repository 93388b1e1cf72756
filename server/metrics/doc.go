// Package metrics is the one place that names metrics.
//
// It owns a registry of its own (nothing is registered by import) and offers a
// method for each thing that can be reported; server hands these methods to the
// packages as the functions of their Events. Labels are small closed sets:
// never an instance, a client or a service by default. The package imports
// nothing of ours. All methods may be called from any goroutine and do not block.
package metrics
