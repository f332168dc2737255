"""Problems: what paragraphs ask of a device that has a choice to make, as frozen values without addresses.

A problem is a named tuple of dtypes, sizes, strides and options; equal problems have equal plans.
"""
