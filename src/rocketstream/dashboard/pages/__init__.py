"""The pages, one module each: values from the collection or the desk, rendered by a template.

Law: a page calls an Admin only within a question that it hands to the desk.
"""
