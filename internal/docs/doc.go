// Package docs holds the documents to the code: its test reads both, and fails where a page names what is gone or leaves out
// what there is.
package docs
