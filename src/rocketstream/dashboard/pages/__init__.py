"""The pages, one module each: values from the collection or the desk, into a template.

Law: no page calls an Admin but within a question it hands to the desk.
"""
