// Package files keeps the content of uploaded files, in a Folder or in an S3-compatible Bucket, and reads it: which type it
// is, and the text that the model is shown of it.
//
// What it keeps is named by a file's id and written once. Whom it belongs to, and whether it is there at all, says Postgres.
package files
