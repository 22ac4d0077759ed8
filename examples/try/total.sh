#!/bin/sh
# Prints the sum of its arguments, the prices of an order.
sum=0
for position in $(seq 2 $#); do
    eval "price=\${$position}"
    sum=$((sum + price))
done
echo "$sum"
