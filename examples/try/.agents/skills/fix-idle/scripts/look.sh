#!/bin/sh
# Prints the total of one order.
sh total.sh 5 3 2
