"""Results of papers, each run again with our code: what the paper says, what comes out here, and why where it differs.

A row is a figure of a paper with a band in which ours should lie.  Rows are grouped in files by what they are about;
`rows.ROWS` holds all of them.
"""
